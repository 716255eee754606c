import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.bench.bootstrap import judge_ratio, median_estimate, noise_floor, ratio_estimate
from paceline.bench.records import Estimate, Verdict

POSITIVE = st.floats(1e-3, 1e4)
VALUES = st.lists(POSITIVE, min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=12)
FEWER = settings(max_examples=30)  # each draws 10,000 samples
CONFIDENCE = st.sampled_from([80.0, 90.0, 95.0, 99.0])


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, blocks=3)


@pytest.mark.parametrize(
    ("values", "median", "low", "high"),
    [
        ([7.0], 7.0, 7.0, 7.0),
        # Of two blocks, a quarter of all draws takes the lower one twice: far more than the 2.5 % of a tail.
        ([1.0, 3.0], 2.0, 1.0, 3.0),
        # Of three, the lowest is the median of 7 in 27 draws.
        ([9.0, 1.0, 2.0], 2.0, 1.0, 9.0),
        # Of five, the median is the lowest with three or more draws of it: 181 of 3125, 5.8 %, beyond 2.5 %.
        ([10.0, 20.0, 30.0, 40.0, 50.0], 30.0, 10.0, 50.0),
    ],
)
def test_small_samples_by_hand(values: list[float], median: float, low: float, high: float) -> None:
    found = median_estimate(values, 95.0, seed=1)
    assert (found.value, found.low, found.high, found.blocks) == (median, low, high, len(values))


def test_seven_blocks_leave_the_extremes_out() -> None:
    """The lowest of seven is the median with four or more draws of it in seven: 1.0 %, less than the tail of 2.5 %.

    One of the lowest two is with probability 10.2 %, so the interval begins at the second.
    """
    found = median_estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 95.0, seed=3)
    assert (found.low, found.value, found.high) == (2.0, 4.0, 6.0)


def test_the_ratio_is_paired_by_block_and_geometric() -> None:
    found = ratio_estimate([4.0, 18.0], [1.0, 2.0], 95.0, seed=1)
    assert found is not None
    assert math.isclose(found.value, 6.0)  # the ratios are 4 and 9; the middle of their logarithms is sqrt(36)
    assert math.isclose(found.low, 4.0)
    assert math.isclose(found.high, 9.0)


def test_a_drift_that_hits_both_arms_of_a_block_cancels() -> None:
    found = ratio_estimate([3.0, 30.0, 300.0], [1.0, 10.0, 100.0], 95.0, seed=1)
    assert found is not None
    assert math.isclose(found.low, 3.0)
    assert math.isclose(found.high, 3.0)


@pytest.mark.parametrize(("arm", "baseline"), [([0.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0, 0.0])])
def test_a_zero_leaves_no_ratio(arm: list[float], baseline: list[float]) -> None:
    assert ratio_estimate(arm, baseline, 95.0, seed=1) is None


def test_blocks_must_pair() -> None:
    with pytest.raises(ValueError, match="2 blocks of the arm can't be paired with 1"):
        ratio_estimate([1.0, 2.0], [1.0], 95.0, seed=1)


@FEWER
@given(VALUES, CONFIDENCE, st.integers(0, 1_000))
def test_the_interval_holds_the_point_estimate(values: list[float], confidence: float, seed: int) -> None:
    found = median_estimate(values, confidence, seed)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


@FEWER
@given(VALUES, CONFIDENCE, st.randoms())
def test_the_order_of_the_blocks_does_not_matter(values: list[float], confidence: float, rng: random.Random) -> None:
    shuffled = rng.sample(values, k=len(values))
    assert median_estimate(shuffled, confidence, seed=5) == median_estimate(values, confidence, seed=5)


@FEWER
@given(VALUES, st.integers(0, 1_000))
def test_more_confidence_is_a_wider_interval(values: list[float], seed: int) -> None:
    narrow, wide = median_estimate(values, 80.0, seed), median_estimate(values, 99.0, seed)
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


@FEWER
@given(PAIRS, CONFIDENCE)
def test_swapping_the_arms_gives_the_reciprocal(pairs: list[tuple[float, float]], confidence: float) -> None:
    arm, baseline = [a for a, _ in pairs], [b for _, b in pairs]
    forth, back = ratio_estimate(arm, baseline, confidence, seed=2), ratio_estimate(baseline, arm, confidence, seed=2)
    assert forth is not None
    assert back is not None
    assert math.isclose(forth.value * back.value, 1.0, rel_tol=1e-9)


@FEWER
@given(PAIRS, POSITIVE)
def test_the_unit_does_not_matter_to_a_ratio(pairs: list[tuple[float, float]], unit: float) -> None:
    arm, baseline = [a for a, _ in pairs], [b for _, b in pairs]
    plain = ratio_estimate(arm, baseline, 95.0, seed=2)
    scaled = ratio_estimate([a * unit for a in arm], [b * unit for b in baseline], 95.0, seed=2)
    assert plain is not None
    assert scaled is not None
    assert math.isclose(plain.value, scaled.value, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "higher_is_better", "verdict"),
    [
        (1.06, 3.0, True, Verdict.BETTER),
        (1.06, 3.0, False, Verdict.WORSE),
        (0.3, 0.9, True, Verdict.WORSE),
        (0.3, 0.9, False, Verdict.BETTER),
        (1.04, 3.0, True, Verdict.NO_DIFFERENCE),  # the lower end is within the margin
        (0.5, 2.0, True, Verdict.NO_DIFFERENCE),
        (1.01, 1.02, True, Verdict.NO_DIFFERENCE),  # certain, and too small to claim
        (0.96, 0.97, False, Verdict.NO_DIFFERENCE),
    ],
)
def test_a_verdict_needs_the_whole_interval(
    low: float, high: float, verdict: Verdict, *, higher_is_better: bool
) -> None:
    assert judge_ratio(estimate(low, low, high), 1.05, higher_is_better=higher_is_better) is verdict


def test_one_block_claims_nothing() -> None:
    alone = Estimate(value=9.0, low=9.0, high=9.0, blocks=1)
    assert judge_ratio(alone, 1.05, higher_is_better=True) is Verdict.NO_DIFFERENCE


@pytest.mark.parametrize(
    ("control", "floor"),
    [
        (None, 1.05),
        (estimate(1.0, 0.99, 1.01), 1.05),
        (estimate(1.0, 0.9, 1.3), 1.3),
        (estimate(1.0, 0.5, 1.1), 2.0),
    ],
)
def test_what_the_control_arm_shows_is_noise(control: Estimate | None, floor: float) -> None:
    assert noise_floor(control, 5.0) == floor
