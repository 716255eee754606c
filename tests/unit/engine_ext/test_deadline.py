"""The escape from holding: when prefills have to run in every step to be done in time."""

import pytest

from paceline.engine_ext.pacing.deadline import Backlog, must_escape


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
    assert must_escape([Backlog(waited, 1_000)], 100, 2.0, 60) is expected


def test_prefills_ahead_count() -> None:
    queue = [Backlog(5.0, 2_000), Backlog(5.0, 100)]
    # The second is done after 21 chunks: 22 * 2 s * 1.25 = 55 s, and 5 s have passed.
    assert must_escape(queue, 100, 2.0, 60)
    assert not must_escape(queue[:1], 100, 2.0, 60)
    assert not must_escape(queue, 100, 2.0, 61)


def test_nothing_waits() -> None:
    assert not must_escape([], 100, 2.0, 60)


def test_unknown_step_time_escapes_after_half_the_delay() -> None:
    assert not must_escape([Backlog(29.9, 10)], 100, None, 60)
    assert must_escape([Backlog(1.0, 10), Backlog(30.0, 10)], 100, None, 60)
