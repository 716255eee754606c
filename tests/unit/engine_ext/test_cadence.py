"""The cadence alone: a gap in steps, counted over steps that computed something."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.engine_ext.pacing.cadence import Cadence


def test_first_mixed_step_may_come_at_once() -> None:
    assert Cadence().allows(1_024)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=200))
def test_mixed_steps_lie_at_least_the_gap_of_the_moment_apart(gaps: list[int]) -> None:
    cadence, mixed = Cadence(), []
    for gap in gaps:
        allowed = cadence.allows(gap)
        assert allowed == (not mixed or cadence.step + 1 - mixed[-1] >= gap)
        cadence.advance(mixed=allowed)
        if allowed:
            mixed.append(cadence.step)
    assert cadence.step == len(gaps)


def test_constant_gap_gives_one_mixed_step_in_n() -> None:
    cadence, mixed = Cadence(), []
    for step in range(1, 18):
        allowed = cadence.allows(4)
        cadence.advance(mixed=allowed)
        if allowed:
            mixed.append(step)
    assert mixed == [1, 5, 9, 13, 17]
