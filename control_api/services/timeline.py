"""The residents' token rate over time, for plots; pure functions of what was recorded."""

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.bench.records import BlockRecord, RequestRecord
from paceline.bench.windows import tokens_until
from paceline.control_api.schemas.experiments import BlockTimeline, Timeline

MAX_BINS = 2_000
"""Most points of one block's line; wider bins are used for a longer block."""


def timeline(blocks: Iterable[BlockRecord], residents: Sequence[RequestRecord], bin_seconds: float) -> Timeline:
    """Return each block's mean rate of its residents, counted from the injection."""
    found = []
    for block in blocks:
        place = (block.arm, block.block, block.warm_up)
        own = [record for record in residents if (record.arm, record.block, record.warm_up) == place]
        if block.injected_seconds is not None and own:
            found.append(_block_timeline(block, block.injected_seconds, own, bin_seconds))
    return Timeline(blocks=found)


def _block_timeline(
    block: BlockRecord, injected_seconds: float, residents: Sequence[RequestRecord], bin_seconds: float
) -> BlockTimeline:
    start = block.steady_seconds if block.steady_seconds is not None else injected_seconds
    width = max(bin_seconds, (block.ended_seconds - start) / MAX_BINS)
    # Edges count from the injection, so that no bin mixes the time before it with the time after.
    first = -int((injected_seconds - start) // width)
    last = max(first + 1, int((block.ended_seconds - injected_seconds) // width))
    edges = [injected_seconds + width * place for place in range(first, last + 1)]
    counts = np.array([np.diff(tokens_until(record.chunks, edges)) for record in residents])
    first_token = block.first_token_seconds
    return BlockTimeline(
        arm=block.arm,
        block=block.block,
        warm_up=block.warm_up,
        start_seconds=first * width,
        bin_seconds=width,
        first_token_seconds=None if first_token is None else first_token - injected_seconds,
        tokens_per_second=[round(float(rate), 4) for rate in counts.mean(axis=0) / width],
    )
