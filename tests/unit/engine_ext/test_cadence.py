"""The cadence alone: a gap in steps, counted over steps that computed something."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.engine_ext.pacing.cadence import Cadence


def test_first_mixed_step_may_come_at_once() -> None:
    assert Cadence().allows(1, 1_024)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=200))
def test_mixed_steps_lie_at_least_the_gap_of_the_moment_apart(gaps: list[int]) -> None:
    cadence = Cadence()
    for step, gap in enumerate(gaps, 1):
        allowed = cadence.allows(step, gap)
        assert allowed == (cadence.last_mixed is None or step - cadence.last_mixed >= gap)
        if allowed:
            cadence.last_mixed = step


def test_constant_gap_gives_one_mixed_step_in_n() -> None:
    cadence, mixed = Cadence(), []
    for step in range(1, 18):
        if cadence.allows(step, 4):
            cadence.last_mixed = step
            mixed.append(step)
    assert mixed == [1, 5, 9, 13, 17]
