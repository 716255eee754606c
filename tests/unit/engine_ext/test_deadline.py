"""The escape from holding: when prefills have to run in every step to be done in time."""

import pytest

from paceline.engine_ext.pacing.deadline import Backlog, StepCosts, must_escape

TWO_SECONDS = StepCosts(step=2.0, token=0.0, pair=0.0)


@pytest.mark.parametrize(
    ("waited", "expected"),
    [
        # 1000 tokens at 100 a chunk: ten chunks and one for safety, 11 * 2 s * 1.25 = 27.5 s of 60 s.
        (32.4, False),
        (32.5, True),
        (70.0, True),
    ],
)
def test_lone_prefill(waited: float, expected: bool) -> None:
    assert must_escape([Backlog(waited, 1_000)], 100, TWO_SECONDS, 60) is expected


def test_prefills_ahead_count() -> None:
    queue = [Backlog(5.0, 2_000), Backlog(5.0, 100)]
    # The second is done after 21 chunks: 22 * 2 s * 1.25 = 55 s, and 5 s have passed.
    assert must_escape(queue, 100, TWO_SECONDS, 60)
    assert not must_escape(queue[:1], 100, TWO_SECONDS, 60)
    assert not must_escape(queue, 100, TWO_SECONDS, 61)


def test_tokens_and_the_growing_context_count() -> None:
    # 131,072 tokens in chunks of 1024: 129 steps at 0.1 s, 132,096 tokens at 1 ms, and 131072^2 / 2 pairs at 10 ns
    # are 12.9 + 132.1 + 85.9 = 230.9 s, with a quarter on top 288.6 s. The pairs of the first chunk alone: 0.7 s.
    costs = StepCosts(step=0.1, token=1e-3, pair=1e-8)
    assert not must_escape([Backlog(0.0, 131_072)], 1_024, costs, 289)
    assert must_escape([Backlog(0.0, 131_072)], 1_024, costs, 288)
    # What is computed already is context of the rest: 65 steps, 66,560 tokens, 65536 * 98304 pairs: 137.5 s, 171.8 s.
    assert not must_escape([Backlog(0.0, 65_536, 65_536)], 1_024, costs, 172)
    assert must_escape([Backlog(0.0, 65_536, 65_536)], 1_024, costs, 171)


def test_nothing_waits() -> None:
    assert not must_escape([], 100, TWO_SECONDS, 60)


def test_unknown_step_time_escapes_after_half_the_delay() -> None:
    assert not must_escape([Backlog(29.9, 10)], 100, None, 60)
    assert must_escape([Backlog(1.0, 10), Backlog(30.0, 10)], 100, None, 60)
