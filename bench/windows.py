"""Rates and gaps of one stream inside a window of time; pure functions of what was recorded.

Between two chunks a stream's tokens are taken as spread evenly, so a gap that spans the edge of a window counts by its
part inside, and a rate does not jump by whole tokens with the edge's place.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline.bench.records import ChunkTimeline


def tokens_until(timeline: ChunkTimeline, times: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how many tokens had come by each of `times`; 0 before the first chunk, constant after the last."""
    if not timeline.received_seconds:
        return np.zeros(len(times))
    return np.interp(times, timeline.received_seconds, np.cumsum(timeline.tokens), left=0.0)


def rate(timeline: ChunkTimeline, start: float, end: float) -> float:
    """Return the tokens per second between two points in time, in seconds; `end` must be after `start`."""
    first, last = tokens_until(timeline, [start, end])
    return float((last - first) / (end - start))


def chunk_gaps(timeline: ChunkTimeline, start: float, end: float) -> list[float]:
    """Return the gaps between chunks, in seconds, that lie in the window at least in part: what a reader waits for."""
    return [gap for gap, _ in _gaps(timeline, start, end)]


def token_gaps(timeline: ChunkTimeline, start: float, end: float) -> list[float]:
    """Return the gaps between tokens, in seconds, in the window: each chunk's gap shared by the tokens it brought."""
    return [gap / count for gap, count in _gaps(timeline, start, end) for _ in range(count)]


def _gaps(timeline: ChunkTimeline, start: float, end: float) -> list[tuple[float, int]]:
    arrivals = zip(pairwise(timeline.received_seconds), timeline.tokens[1:], strict=True)
    return [(later - earlier, count) for (earlier, later), count in arrivals if later > start and earlier < end]
