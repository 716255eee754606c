"""A recurrence cut into segments: the state is exported at each cut. Tensors only, the same for every device."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from paceline.engine_ext.coalescing.worker import RowExports

Segment = tuple[int, int]
RunSegment = Callable[[int, int], torch.Tensor]
"""Computes tokens [lo, hi) from the running state, leaves the new running state behind, returns [1, hi - lo, ...]."""


def segments(start: int, end: int, cuts: tuple[int, ...]) -> Iterator[Segment]:
    """Yield the (lo, hi) between the cuts; cuts are offsets from `start`, strictly inside."""
    edges = [start, *(start + cut for cut in cuts), end]
    yield from pairwise(edges)


def run_segments(start: int, end: int, cuts: tuple[int, ...], run: RunSegment, export: Callable[[int], None]) -> (
    torch.Tensor
):  # fmt: skip
    """Run a row segment by segment, and call `export(i)` when the running state is the one at cut i."""
    outputs = []
    for index, (low, high) in enumerate(segments(start, end, cuts)):
        outputs.append(run(low, high))
        if index < len(cuts):
            export(index)
    return torch.cat(outputs, dim=1)


def copy_slot(states: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy one cache block's state to another; `source` and `target` are [1] indices on the states' device."""
    states.index_copy_(0, target, states.index_select(0, source))


def write_conv_state(states: torch.Tensor, slot: torch.Tensor, inputs: torch.Tensor, *, dim_first: bool) -> None:
    """Write a convolution's state: the last inputs before the cut.

    `states` is [blocks, width, dim], or [blocks, dim, width] with `dim_first`; `inputs` [width, dim].
    """
    value = inputs.transpose(0, 1) if dim_first else inputs
    states.index_copy_(0, slot, value.unsqueeze(0).to(states.dtype))


def export_conv_states(layer: Any, exports: RowExports, mixed_qkv: torch.Tensor, *, dim_first: bool) -> None:
    """Write a layer's convolution state at each cut; `mixed_qkv` [tokens, dim] is its input for the whole batch."""
    width = layer.conv1d.weight.size(-1) - 1
    for index, cut in enumerate(exports.cuts):
        end = exports.token_start + cut
        slot = exports.slots[index : index + 1]
        write_conv_state(layer.kv_cache[0], slot, mixed_qkv[end - width : end], dim_first=dim_first)
