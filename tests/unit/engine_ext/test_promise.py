"""The account of a promise: credits, slack, and the judgement of finished requests."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine_ext.pacing.promise import Promise


def test_first_token_starts_the_account() -> None:
    promise = Promise(0.1)
    promise.on_tokens("a", 1, now=5.0, cap=1.0)
    assert promise.smallest_slack({"a": 1}, done_at=5.1) == pytest.approx(0.0)
    assert promise.smallest_slack({"a": 1}, done_at=5.4) == pytest.approx(-0.3)


def test_early_tokens_save_credit_up_to_the_cap() -> None:
    promise = Promise(0.1)
    for index in range(11):
        promise.on_tokens("a", 1, now=index * 0.04, cap=0.25)
    # Ten gaps of 0.04 s save 0.6 s, of which 0.25 s are kept.
    assert promise.smallest_slack({"a": 1}, done_at=0.4 + 0.35) == pytest.approx(0.0)


def test_several_tokens_of_one_step_count_each() -> None:
    promise = Promise(0.1)
    promise.on_tokens("a", 1, now=0.0, cap=1.0)
    promise.on_tokens("a", 4, now=0.2, cap=1.0)
    assert promise.smallest_slack({"a": 1}, done_at=0.5) == pytest.approx(0.0)


def test_worst_resident_decides_and_unknown_ones_do_not() -> None:
    promise = Promise(0.1)
    promise.on_tokens("late", 1, now=0.0, cap=1.0)
    promise.on_tokens("fresh", 1, now=0.3, cap=1.0)
    assert promise.smallest_slack({"fresh": 1, "late": 1, "unknown": 1}, 0.35) == pytest.approx(-0.25)
    assert promise.smallest_slack({"unknown": 1}, 0.35) == math.inf


def test_each_resident_is_due_the_tokens_of_the_steps_that_compute_it() -> None:
    promise = Promise(0.1)
    promise.on_tokens("twice", 1, now=0.0, cap=1.0)
    promise.on_tokens("once", 1, now=0.05, cap=1.0)
    assert promise.smallest_slack({"twice": 2, "once": 1}, 0.2) == pytest.approx(-0.05)


@pytest.mark.parametrize(("gap", "kept", "broken"), [(0.1, 1, 0), (0.11, 0, 1)])
def test_finished_request_is_judged_by_its_mean_gap(gap: float, kept: int, broken: int) -> None:
    promise = Promise(0.1)
    for index in range(5):
        promise.on_tokens("a", 1, now=index * gap - 1e-9 * index, cap=1.0)
    promise.on_finished("a")
    promise.on_finished("never seen")
    assert (promise.kept, promise.broken) == (kept, broken)


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_credit_at_or_above_zero_means_that_the_mean_gap_is_kept(gaps: list[float], cap: float) -> None:
    promise, now = Promise(0.1), 0.0
    promise.on_tokens("a", 1, now, cap)
    for gap in gaps:
        now += gap
        promise.on_tokens("a", 1, now, cap)
    if promise.residents["a"].credit >= 0:
        assert now / len(gaps) <= 0.1 + 1e-9


def test_aborted_residents_are_forgotten() -> None:
    promise = Promise(0.1)
    for index in range(100):
        promise.on_tokens(f"r{index}", 1, 0.0, 1.0)
    promise.forget_all_but(["r7"])
    assert set(promise.residents) == {"r7"}
