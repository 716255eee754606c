"""Medians, ratios and their bootstrap intervals over blocks, and the verdict that an interval allows.

Percentile bootstrap (Efron 1979): blocks are drawn with replacement, the statistic is taken of each draw, and the
interval holds the middle `confidence` of them. Blocks are the unit, since the steps inside one are not independent.
With fewer than about five blocks the interval is little more than the range of the blocks.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline.bench.records import Estimate, Verdict

RESAMPLES: Final = 10_000


def median_estimate(values: Sequence[float], confidence_percent: float, seed: int) -> Estimate:
    """Return the median of one value a block, with its interval. The order of the blocks does not matter."""
    low, value, high = _interval(values, confidence_percent, seed)
    return Estimate(value=value, low=low, high=high, blocks=len(values))


def ratio_estimate(
    arm: Sequence[float], baseline: Sequence[float], confidence_percent: float, seed: int
) -> Estimate | None:
    """Return how many times the baseline's value the arm's is, from values paired by block.

    The median is taken of the ratios' logarithms, so that swapping arm and baseline gives the reciprocal. None where a
    value is not positive: no ratio exists then.
    """
    if len(arm) != len(baseline):
        raise ValueError(f"{len(arm)} blocks of the arm can't be paired with {len(baseline)} of the baseline")
    if min(*arm, *baseline) <= 0:
        return None
    logs = np.log(np.asarray(arm)) - np.log(np.asarray(baseline))
    low, value, high = _interval(logs.tolist(), confidence_percent, seed)
    return Estimate(value=math.exp(value), low=math.exp(low), high=math.exp(high), blocks=len(arm))


def noise_floor(control: Estimate | None, indifference_percent: float) -> float:
    """Return the smallest ratio above 1 that is worth a claim.

    That is the plan's margin, or what the A/A arm showed where it showed more.
    """
    margin = 1 + indifference_percent / 100
    return margin if control is None else max(margin, control.high, 1 / control.low)


def judge_ratio(ratio: Estimate, floor: float, *, higher_is_better: bool) -> Verdict:
    """Tell what a ratio's interval says; a difference is claimed only where the whole interval is beyond the floor.

    One block alone tells nothing about the spread, so nothing is claimed from it.
    """
    if ratio.blocks < 2:
        return Verdict.NO_DIFFERENCE
    if ratio.low > floor:
        return Verdict.BETTER if higher_is_better else Verdict.WORSE
    if ratio.high < 1 / floor:
        return Verdict.WORSE if higher_is_better else Verdict.BETTER
    return Verdict.NO_DIFFERENCE


def _interval(values: Sequence[float], confidence_percent: float, seed: int) -> tuple[float, float, float]:
    ordered: npt.NDArray[np.float64] = np.sort(np.asarray(values, dtype=np.float64))
    draws = np.random.default_rng(seed).integers(0, len(ordered), size=(RESAMPLES, len(ordered)))
    medians = np.median(ordered[draws], axis=1)
    tail = (100 - confidence_percent) / 2
    low, high = np.percentile(medians, [tail, 100 - tail])
    return float(low), float(np.median(ordered)), float(high)
