"""The arms, scales and arithmetic of `coalescing_ttft.py`: what is compared at which scale, and the line behind it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.bench.bootstrap import ratio_estimate
from paceline.bench.cold_prefill import Sample
from paceline.bench.outputs import compare_outputs
from paceline.bench.plan import Arm
from paceline.engine_ext.coalescing.plan import Grids
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk

LADDER_SPAN_TOKENS = 131_071
"""The setting by which `ladder_scheduler.py` knows its arm."""
STOCK = Arm(name="stock")
LADDER = Arm(
    name="ladder",
    coalescing=CoalescingSettings(final_chunk=FinalChunk.ENABLED, max_span_tokens=LADDER_SPAN_TOKENS),
)
COALESCED = Arm(name="coalesced", coalescing=CoalescingSettings(final_chunk=FinalChunk.ENABLED))
ARMS = (STOCK, LADDER, COALESCED)
LOGPROB_TOLERANCE = 0.02
FAST_SHARE = 5
"""One in so many samples, the fastest ones, tells what a machine can do that others use as well."""
RESAMPLES = 2_000


@dataclass(frozen=True)
class Scale:
    """The source's block, budget and lengths in tokens, all divided by the same number."""

    name: str
    block: int
    budget: int
    off_grid: tuple[int, ...]
    controls: tuple[int, ...]

    @property
    def label(self) -> str:
        """The scale as it stands beside every figure."""
        return f"{self.name}, block {self.block}, budget {self.budget}"

    @property
    def grids(self) -> Grids:
        """The grids of retained positions."""
        return Grids(self.block, 4 * self.block, keeps_previous=True)

    @property
    def calibration(self) -> tuple[int, ...]:
        """Lengths off the grid that are compared nowhere, from less than a budget to more than three."""
        return tuple(self.budget * tenths // 10 + 7 for tenths in (7, 14, 25, 33))


SCALED = Scale("1/8", 64, 1_024, (2_028, 2_047, 4_039), (1_024, 2_048, 4_096))
SOURCE = Scale("1/1", 512, 8_192, (16_228, 16_383, 32_319), (8_192, 16_384, 32_768))


@dataclass(frozen=True)
class Line:
    """TTFT = constant + passes * seconds_a_pass + tokens * seconds_a_token, from the calibration."""

    constant: float
    seconds_a_pass: float
    seconds_a_token: float

    def predict(self, passes: int, tokens: int) -> float:
        """Return the seconds to the first token."""
        return self.constant + passes * self.seconds_a_pass + tokens * self.seconds_a_token

    @property
    def pass_in_tokens(self) -> float:
        """How many tokens cost as much as a pass."""
        return self.seconds_a_pass / self.seconds_a_token


def of(samples: Sequence[Sample], arm: Arm, length: int) -> list[Sample]:
    """Return an arm's samples of a length, in the order of their blocks."""
    return sorted((s for s in samples if (s.arm, s.length) == (arm.name, length)), key=lambda s: s.sample)


def passes(samples: Sequence[Sample], arm: Arm, length: int) -> int:
    """Return the passes that an arm needs for a length. Raises ValueError where its samples do not agree."""
    (count,) = {sample.passes for sample in of(samples, arm, length)}
    if count is None:
        raise ValueError("passes are counted by the engine's admin port, which is not known")
    return count


def seconds(samples: Sequence[Sample], arm: Arm, length: int) -> list[float]:
    """Return an arm's times to the first token, in the order of its blocks."""
    return [sample.seconds for sample in of(samples, arm, length)]


def fit(samples: Sequence[Sample]) -> Line:
    """Fit the line to the fastest samples of every length and arm: what else a machine does only adds to them."""
    pairs = [(arm, length) for length in sorted({s.length for s in samples}) for arm in ARMS]
    inputs = np.array([[1.0, passes(samples, arm, length), length] for arm, length in pairs])
    fastest = np.array([min(seconds(samples, arm, length)) for arm, length in pairs])
    # Relative errors count: a long prompt's second is not worth more than a short one's.
    fitted, *_ = np.linalg.lstsq(inputs / fastest[:, None], np.ones(len(fastest)), rcond=None)
    return Line(*(float(value) for value in fitted))


def fast_mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of the fastest fifth of the values along the last axis."""
    count = max(1, values.shape[-1] // FAST_SHARE)
    return np.asarray(np.sort(values, axis=-1)[..., :count].mean(axis=-1))


def change(samples: Sequence[Sample], baseline: Arm, length: int, line: Line | None) -> dict[str, Any]:
    """Return by how many percent coalescing changes the time to the first token, and what the line predicts.

    `percent` compares the fastest fifths of both arms' samples, `interval` is its 95 % bootstrap interval over the
    blocks: what else the machine does only adds to a time. `medianOfPairs`, with its interval, has that in it.
    """
    ours, theirs = (np.asarray(seconds(samples, arm, length)) for arm in (COALESCED, baseline))
    draws = np.random.default_rng(0).integers(0, len(ours), size=(RESAMPLES, len(ours)))
    low, high = np.percentile(fast_mean(ours[draws]) / fast_mean(theirs[draws]), [2.5, 97.5])
    pairs = ratio_estimate(list(ours), list(theirs), 95, seed=0)
    assert pairs is not None
    found: dict[str, Any] = {
        "percent": _percent(float(fast_mean(ours) / fast_mean(theirs))),
        "interval": [_percent(float(low)), _percent(float(high))],
        "medianOfPairs": [_percent(ratio) for ratio in (pairs.value, pairs.low, pairs.high)],
    }
    if line is not None:
        with_it, without = (line.predict(passes(samples, arm, length), length) for arm in (COALESCED, baseline))
        found["predicted"] = _percent(with_it / without)
    return found


def _percent(ratio: float) -> float:
    return round(100 * (ratio - 1), 2)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "fast": round(float(fast_mean(np.asarray(values))), 4),
        "median": round(statistics.median(values), 4),
        "slowest": round(max(values), 4),
    }


def row(samples: Sequence[Sample], scale: Scale, length: int, line: Line | None) -> dict[str, Any]:
    """Return the figures of one length: passes and TTFT of every arm, and the change against each baseline."""
    return {
        "scale": scale.label,
        "tokens": length,
        "samples": len(of(samples, COALESCED, length)),
        "passes": {arm.name: passes(samples, arm, length) for arm in ARMS},
        "ttftSeconds": {arm.name: _spread(seconds(samples, arm, length)) for arm in ARMS},
        "againstStock": change(samples, STOCK, length, line),
        "againstLadder": change(samples, LADDER, length, line),
    }


def output_differences(samples: Sequence[Sample]) -> tuple[float, int]:
    """Return the largest logprob difference to stock on the same prompt, and how many outputs are wrong."""
    worst, wrong = 0.0, 0
    for sample in samples:
        if sample.arm != STOCK.name:
            stock = next(s for s in of(samples, STOCK, sample.length) if s.sample == sample.sample)
            compared = compare_outputs(stock.record, sample.record, LOGPROB_TOLERANCE)
            worst, wrong = max(worst, compared.max_logprob_difference), wrong + compared.wrong
    return worst, wrong
