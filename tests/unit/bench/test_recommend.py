"""Worked from the two-card table: C = 21, Tm = 1.014 s, Td = 0.168 s, k = 4.26 tokens a step."""

import pytest
from bench_records import CLOCK, ENGINE
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.recommend import Recommendation, UnusableError, recommend, strictest
from paceline.bench.records import ArmResult, Estimate, ExperimentResult, Metric
from paceline.engine_ext.settings import MAX_INTERVAL_STEPS, PacingMode, PacingSettings, SloSettings

BEFORE, RATE, WAIT = Metric.RESIDENT_RATE_BEFORE, Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN
TD, TP = 0.168 / 4.26, 1.014 / 4.26
"""Seconds per token before and during the unpaced prefill: 39.4 ms and 238 ms."""
UNPACED = (1 / TD, 1 / TP, 21 * 1.014)

Figures = tuple[float, float, float]


def pacing(interval: int) -> PacingSettings:
    return PacingSettings(mode=PacingMode.FIXED, interval=interval) if interval else PacingSettings()


SLO = PacingSettings(mode=PacingMode.SLO, slo=SloSettings(time_per_output_token_milliseconds=80))


def stored(arms: dict[str, tuple[PacingSettings, Figures]], *, valid: bool = True):
    plan = ExperimentPlan(
        name="demo",
        arms=tuple(Arm(name=name, pacing=settings) for name, (settings, _) in arms.items()),
        workload=MixedPhase(injected_prompt_tokens=16_384),
        control_arm=False,
    )
    results = tuple(
        ArmResult(
            arm=name,
            valid=valid,
            reasons=() if valid else ("requests: one failed",),
            injected_prompt_tokens=16_384,
            planned_requests=3,
            completed_requests=3,
            metrics={
                metric: Estimate(value=value, low=value, high=value, blocks=2)
                for metric, value in zip((BEFORE, RATE, WAIT), figures, strict=True)
            },
        )
        for name, (_, figures) in arms.items()
    )
    return plan, ExperimentResult(engine=ENGINE, clock=CLOCK, arms=results, comparisons=(), audits=())


def unpaced_only(promise_ms: float) -> Recommendation:
    return recommend(*stored({"off": (pacing(0), UNPACED)}), promise_ms / 1_000)


@pytest.mark.parametrize(
    ("promise_ms", "interval"),
    [
        (250, 1),  # 238 ms a token unpaced
        (239, 1),
        (238, 2),  # (238.03 - 39.44) / (238 - 39.44) = 1.0001...
        (139, 2),  # 198.59 / 99.56 = 1.99
        (138, 3),  # 198.59 / 98.56 = 2.01
        (90, 4),  # 198.59 / 50.56 = 3.93
        (80, 5),  # 198.59 / 40.56 = 4.90
        (40, 353),  # 198.59 / 0.5634 = 352.5
        (39.5, None),  # more than 1,024 steps
        (39, None),  # less than a decode step gives
    ],
)
def test_smallest_interval_of_the_published_table(promise_ms: float, interval: int | None) -> None:
    found = unpaced_only(promise_ms)
    assert found.interval == found.plain_interval == interval


def test_expected_rate_and_wait() -> None:
    # N = 5: 5 * 4.26 / (1.014 + 4 * 0.168) tok/s and 21 * (1.014 + 4 * 0.168) s.
    expected = unpaced_only(80).recommended
    assert expected is not None
    assert expected.rate == pytest.approx(5 * 4.26 / 1.686)
    assert expected.wait == pytest.approx(21 * 1.686)
    assert 1_000 / expected.rate <= 80


def test_error_on_stored_arms_and_the_margin_from_it() -> None:
    arms = {
        "off": (pacing(0), UNPACED),
        "n=4": (pacing(4), (25.4, 11.1, 31.9)),
        "n=8": (pacing(8), (25.4, 14.6, 45.6)),
        "slo": (SLO, (25.4, 12.6, 36.0)),
    }
    found = recommend(*stored(arms), 0.080)
    by_arm = {point.arm: point for point in found.frontier}
    # The formula says 15.56 tok/s and 45.99 s under N = 8, and 11.225 tok/s under N = 4.
    assert by_arm["n=8"].rate_error == pytest.approx(15.562 / 14.6 - 1, abs=1e-3)
    assert by_arm["n=8"].wait_error == pytest.approx(45.99 / 45.6 - 1, abs=1e-3)
    assert by_arm["n=4"].rate_error == pytest.approx(11.225 / 11.1 - 1, abs=1e-3)
    assert found.margin == pytest.approx(by_arm["n=8"].rate_error)
    # With 6.6 % less than the formula says, 80 ms are 75.05 ms of its own: 198.59 / 35.61 = 5.58.
    assert (found.plain_interval, found.interval) == (5, 6)
    slo = by_arm["slo"]
    assert (slo.interval, slo.rate, slo.measured_rate) == (None, None, 12.6)
    assert [point.interval for point in found.frontier] == [1, 2, 4, 6, 8, 16, 32, None]


def test_margin_that_nothing_can_cover_falls_back_to_the_formula_and_says_so() -> None:
    arms = {"off": (pacing(0), UNPACED), "n=4": (pacing(4), (25.4, 5.0, 60.0))}
    found = recommend(*stored(arms), 0.050)
    assert found.interval == found.plain_interval == 19  # 198.59 / 10.56 = 18.8
    assert "no interval would keep the promise" in found.reason


@pytest.mark.parametrize(
    ("arms", "valid", "message"),
    [
        ({"n=4": (pacing(4), UNPACED)}, True, "none of its arms is unpaced"),
        ({"slo": (SLO, UNPACED)}, True, "none of its arms is unpaced"),
        ({"off": (pacing(0), UNPACED)}, False, "does not count: requests: one failed"),
        ({"off": (pacing(0), (25.4, 0.0, 21.3))}, True, "lacks a rate"),
    ],
)
def test_experiments_that_say_nothing(
    arms: dict[str, tuple[PacingSettings, Figures]], valid: bool, message: str
) -> None:
    with pytest.raises(UnusableError, match=message):
        recommend(*stored(arms, valid=valid), 0.080)


def test_of_several_experiments_the_strictest_counts() -> None:
    assert strictest([unpaced_only(80), unpaced_only(138)]) == 5
    assert strictest([unpaced_only(80), unpaced_only(39)]) is None


positive = st.floats(1.0, 500.0)


@given(before=positive, slow=st.floats(1.01, 50.0), wait=positive, slack=st.floats(1.001, 60.0))
def test_the_interval_keeps_the_promise_and_one_less_does_not(
    before: float, slow: float, wait: float, slack: float
) -> None:
    promise = slack / before
    found = recommend(*stored({"off": (pacing(0), (before, before / slow, wait))}), promise)
    if found.interval is None:
        assert (slow - 1) / (slack - 1) > MAX_INTERVAL_STEPS * (1 - 1e-6)
        return

    def seconds_per_token(interval: int) -> float:
        return (slow + interval - 1) / interval / before

    assert seconds_per_token(found.interval) <= promise * (1 + 1e-6)
    assert found.interval == 1 or seconds_per_token(found.interval - 1) > promise * (1 - 1e-6)
    assert found.recommended is not None
    costs = [point.wait for point in found.frontier if point.wait is not None]
    assert costs == sorted(costs)


def test_the_unpaced_arm_need_not_be_the_first() -> None:
    paced = (1 / TD, 4 * 4.26 / (1.014 + 3 * 0.168), 21 * (1.014 + 3 * 0.168))
    arms = {"n=4": (pacing(4), paced), "off": (pacing(0), UNPACED)}
    found = recommend(*stored(arms), 0.080)
    assert found == recommend(*stored(dict(reversed(arms.items()))), 0.080)
    assert (found.interval, found.plain_interval) == (5, 5)
