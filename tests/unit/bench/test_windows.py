import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.records import ChunkTimeline
from paceline.bench.windows import chunk_gaps, rate, token_gaps, tokens_until


def timeline(*chunks: tuple[float, int]) -> ChunkTimeline:
    return ChunkTimeline(
        received_seconds=tuple(at for at, _ in chunks),
        received_wall_seconds=tuple(at for at, _ in chunks),
        tokens=tuple(count for _, count in chunks),
    )


STEADY = timeline((1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1), (5.0, 1))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (1.0, 5.0, 1.0),
        (1.5, 3.5, 1.0),  # an edge inside a gap counts by its part
        (2.25, 2.5, 1.0),  # no chunk arrived in it, and yet tokens were being made
        (5.0, 9.0, 0.0),  # nothing came after the last chunk
        (0.0, 1.0, 1.0),  # the first chunk comes at once: before it nothing is known
    ],
)
def test_rate_by_hand(start: float, end: float, expected: float) -> None:
    assert math.isclose(rate(STEADY, start, end), expected)


def test_a_chunk_of_several_tokens_counts_them_all() -> None:
    assert rate(timeline((0.0, 1), (2.0, 6)), 0.0, 2.0) == 3.0


def test_a_stall_shows_in_the_window_that_it_covers() -> None:
    stalled = timeline((0.0, 1), (1.0, 1), (11.0, 1), (12.0, 1))
    assert math.isclose(rate(stalled, 1.0, 11.0), 0.1)
    assert chunk_gaps(stalled, 2.0, 10.0) == [10.0]
    assert chunk_gaps(stalled, 0.5, 11.5) == [1.0, 10.0, 1.0]
    assert chunk_gaps(stalled, 12.0, 20.0) == []


def test_chunk_gaps_are_not_token_gaps() -> None:
    speculative = timeline((0.0, 1), (1.0, 4), (2.0, 0))
    assert chunk_gaps(speculative, 0.0, 3.0) == [1.0, 1.0]
    assert token_gaps(speculative, 0.0, 3.0) == [0.25] * 4  # the last chunk did not say what it carried


def test_a_stream_without_chunks() -> None:
    assert tokens_until(ChunkTimeline(), [1.0, 2.0]).tolist() == [0.0, 0.0]
    assert rate(ChunkTimeline(), 0.0, 1.0) == 0.0
    assert chunk_gaps(ChunkTimeline(), 0.0, 1.0) == []


CHUNKS = st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(1, 8)), min_size=1, max_size=20)


@given(CHUNKS, st.floats(0.0, 50.0), st.floats(0.01, 20.0), st.floats(0.01, 20.0))
def test_tokens_of_two_windows_add_up(gaps: list[tuple[float, int]], start: float, first: float, second: float) -> None:
    at, chunks = 0.0, []
    for gap, count in gaps:
        at += gap
        chunks.append((at, count))
    line = timeline(*chunks)
    middle, end = start + first, start + first + second
    whole = rate(line, start, end) * (end - start)
    parts = rate(line, start, middle) * (middle - start) + rate(line, middle, end) * (end - middle)
    assert math.isclose(whole, parts, rel_tol=1e-9, abs_tol=1e-9)
    assert 0 <= whole <= sum(count for _, count in chunks) + 1e-9
