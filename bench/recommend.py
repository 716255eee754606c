"""Which fixed interval keeps a promise: the pacing formula on stored experiments, and its error on their arms.

The promise is a mean: seconds per output token of a resident while a prompt like the stored one is prefilled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from paceline.bench.plan import Arm, ExperimentPlan
from paceline.bench.prediction import predict
from paceline.bench.records import ArmResult, Estimate, ExperimentResult, Metric
from paceline.engine_ext.settings import MAX_INTERVAL_STEPS, PacingMode, PacingSettings

RATE, WAIT, BEFORE = Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN, Metric.RESIDENT_RATE_BEFORE
FRONTIER: Final = (1, 2, 4, 8, 16, 32)
"""The intervals that a frontier shows besides those that were measured and the recommended one."""
ROUNDING: Final = 1e-9


class UnusableError(Exception):
    """An experiment that says nothing of fixed intervals; the message says why and what to run."""


@dataclass(frozen=True)
class Point:
    """One point of the frontier: a resident's tokens per second and the prompt's wait in seconds.

    `interval` is None for an arm that follows a promise. What was not measured, or can't be predicted, is None.
    """

    arm: str
    interval: int | None
    rate: float | None = None
    wait: float | None = None
    measured_rate: float | None = None
    measured_wait: float | None = None

    @property
    def rate_error(self) -> float | None:
        """How far the predicted rate lies above the measured one, as a fraction of it."""
        return _error(self.rate, self.measured_rate)

    @property
    def wait_error(self) -> float | None:
        """How far the predicted wait lies above the measured one, as a fraction of it."""
        return _error(self.wait, self.measured_wait)


@dataclass(frozen=True)
class Recommendation:
    """What one experiment says of a promise.

    `interval` is None where no interval keeps it; `reason` says why the answer is what it is. `margin` is the fraction
    by which the formula overestimated a resident's rate at worst on the stored arms: the recommended interval keeps the
    promise even so, `plain_interval` only if the formula is right.
    """

    interval: int | None
    plain_interval: int | None
    margin: float
    reason: str
    frontier: tuple[Point, ...]

    @property
    def recommended(self) -> Point | None:
        """The frontier's point of the recommended interval."""
        return next((p for p in self.frontier if p.interval == self.interval), None) if self.interval else None


@dataclass(frozen=True)
class _Law:
    """The formula with one experiment's unpaced arm in it, as `baseline`."""

    baseline: Arm
    medians: Mapping[Metric, Estimate]

    @property
    def before(self) -> float:
        return self.medians[BEFORE].value

    def point(self, interval: int) -> tuple[float, float]:
        """Return the predicted rate and wait under an interval; 1 is the baseline itself."""
        arm = Arm(
            name="asked",
            pacing=PacingSettings(mode=PacingMode.FIXED, interval=interval),
            coalescing=self.baseline.coalescing,
        )
        found = predict(arm, self.baseline, self.medians)
        return found.get(RATE, self.medians[RATE].value), found.get(WAIT, self.medians[WAIT].value)

    def smallest_interval(self, seconds_per_token: float) -> int | None:
        """Return the smallest interval whose predicted rate keeps the promise; None where none up to the largest does.

        With td and tp the seconds a token takes before and during the unpaced prefill, N is
        ceil((tp - td) / (promise - td)).
        """
        decode, paced = 1 / self.before, 1 / self.medians[RATE].value
        if paced <= seconds_per_token:
            return 1
        if seconds_per_token <= decode:
            return None
        interval = max(1, math.ceil((paced - decode) / (seconds_per_token - decode) - ROUNDING))
        return interval if interval <= MAX_INTERVAL_STEPS else None


def recommend(plan: ExperimentPlan, result: ExperimentResult, seconds_per_token: float) -> Recommendation:
    """Return the interval for a promise of `seconds_per_token`. Raises UnusableError."""
    law = _law(plan, result)
    measured = _measured(plan, result, law)
    errors = [point.rate_error for point in measured if point.rate_error is not None]
    margin = max([0.0, *errors])
    plain = law.smallest_interval(seconds_per_token)
    careful = law.smallest_interval(seconds_per_token / (1 + margin))
    interval = plain if careful is None else careful
    shown = {point.interval for point in measured}
    asked = sorted({*FRONTIER, *([interval] if interval else [])} - shown)
    predicted = [_predicted(law, each) for each in asked]
    frontier = sorted([*measured, *predicted], key=lambda point: (point.interval is None, point.interval or 0))
    reason = _reason(law, seconds_per_token, interval, careful, tested=bool(errors))
    return Recommendation(interval, plain, margin, reason, tuple(frontier))


def _law(plan: ExperimentPlan, result: ExperimentResult) -> _Law:
    baseline = next((arm for arm in plan.arms if _is_unpaced(arm)), None)
    if baseline is None:
        raise UnusableError("none of its arms is unpaced: the formula starts from one that is")
    base = next(arm for arm in result.arms if arm.arm == baseline.name)
    if not base.valid:
        raise UnusableError(f"its unpaced arm does not count: {base.reasons[0]}")
    lacking = [metric.value for metric in (BEFORE, RATE, WAIT) if metric not in base.metrics]
    if lacking or min(base.metrics[metric].value for metric in (BEFORE, RATE, WAIT)) <= 0:
        raise UnusableError(f"its unpaced arm lacks a rate: {', '.join(lacking) or 'one is 0'}")
    return _Law(baseline, base.metrics)


def _is_unpaced(arm: Arm) -> bool:
    return arm.pacing.mode is not PacingMode.SLO and arm.pacing.effective_interval == 1


def _measured(plan: ExperimentPlan, result: ExperimentResult, law: _Law) -> list[Point]:
    settings = {arm.name: arm for arm in plan.arms}
    return [
        _point(settings[arm.arm], arm, law)
        for arm in result.arms
        if arm.arm in settings and arm.valid and settings[arm.arm].coalescing == law.baseline.coalescing
    ]


def _point(arm: Arm, found: ArmResult, law: _Law) -> Point:
    rate, wait = (found.metrics[metric].value if metric in found.metrics else None for metric in (RATE, WAIT))
    if arm.pacing.mode is PacingMode.SLO:
        return Point(arm.name, None, measured_rate=rate, measured_wait=wait)
    interval = arm.pacing.effective_interval
    expected_rate, expected_wait = law.point(interval) if interval > 1 else (None, None)
    return Point(arm.name, interval, expected_rate, expected_wait, rate, wait)


def _predicted(law: _Law, interval: int) -> Point:
    rate, wait = law.point(interval)
    return Point(f"n={interval}", interval, rate, wait)


def _reason(law: _Law, promise: float, interval: int | None, careful: int | None, *, tested: bool) -> str:
    if interval is None:
        if promise <= 1 / law.before:
            return (
                f"even without a prefill a token takes {1_000 / law.before:.0f} ms: no pacing can keep "
                f"{1_000 * promise:.0f} ms"
            )
        return f"it would take more than {MAX_INTERVAL_STEPS} steps between two chunks"
    if interval == 1:
        return "the promise is kept unpaced"
    if careful is None:
        return "the formula's own interval: with its worst error on the stored arms no interval would keep the promise"
    return (
        "the formula, with its worst error on the stored arms as margin"
        if tested
        else ("the formula alone: no paced arm is stored to tell its error")
    )


def strictest(found: Sequence[Recommendation]) -> int | None:
    """Return the interval that keeps the promise in every experiment; None where one has none."""
    intervals = [each.interval for each in found]
    return None if None in intervals else max(interval for interval in intervals if interval is not None)


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None
