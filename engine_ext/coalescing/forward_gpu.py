"""States exported inside vLLM's gated delta net on GPU: the interface of `forward_cpu`, by segments of the same rule.

Not run on a GPU yet: its tests use tensors on CPU and a stand-in for the kernel. Each segment starts from the state as
it was stored for the one before, so that it is rounded where the split run rounds it; the states per chunk that FLA
makes on its way have the keys' type, not the cache's, and are not used. Nothing here waits for the device.
"""

from collections.abc import Callable
from functools import partial, wraps
from itertools import pairwise
from typing import Any, Final

import torch

from paceline.engine_ext.coalescing import recurrence, worker

PER_TOKEN: Final = ("q", "k", "v", "g", "beta")
FLA_CHUNK_TOKENS: Final = 64


def wrap_rule(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the rule's module call: the planned row runs in segments. Tensors are [1, tokens, heads, dim]."""

    @wraps(stock)
    def forward(self: Any, **call: Any) -> Any:
        cut = worker.current_cut()
        if cut is None:
            return stock(self, **call)
        rows = [
            _run_row(partial(stock, self), call, row, bounds, cut)
            for row, bounds in enumerate(pairwise(cut.exports.prefill_bounds))
        ]
        return torch.cat([output for output, _ in rows], dim=1), torch.cat([final for _, final in rows])

    return forward


def wrap_forward_core(
    stock: Callable[..., None], get_forward_context: Callable[[], Any], is_conv_state_dim_first: Callable[[], bool]
) -> Callable[..., None]:
    """Wrap a layer's computation: a planned row leaves its states in the cache."""

    @wraps(stock)
    def forward_core(self: Any, mixed_qkv: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        metadata = get_forward_context().attn_metadata
        own = metadata.get(self.prefix) if isinstance(metadata, dict) else None
        exports = getattr(own, worker.EXPORTS_ATTRIBUTE, None)
        if exports is None:
            stock(self, mixed_qkv, *args, **kwargs)
            return
        with worker.cutting(exports, self):
            stock(self, mixed_qkv, *args, **kwargs)
        recurrence.export_conv_states(self, exports, mixed_qkv, dim_first=is_conv_state_dim_first())
        worker.mark_written(self.prefix)

    return forward_core


def chunk_metadata(tokens: int, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return FLA's metadata of one row of `tokens`, on the device and of the type of the cumulative lengths `like`."""
    chunks = -(-tokens // FLA_CHUNK_TOKENS)
    made = {
        "cu_seqlens": torch.tensor([0, tokens]),
        "chunk_indices": torch.stack([torch.zeros(chunks, dtype=torch.int64), torch.arange(chunks)], dim=1),
        "chunk_offsets": torch.tensor([0, chunks]),
    }
    return {name: value.to(device=like.device, dtype=like.dtype, non_blocking=True) for name, value in made.items()}


def _run_row(
    stock: Callable[..., Any], call: dict[str, Any], row: int, bounds: tuple[int, int], cut: worker.Cut
) -> tuple[torch.Tensor, torch.Tensor]:
    state = call["initial_state"][row : row + 1]
    exports, cache = cut.exports, cut.states

    def run(low: int, high: int) -> torch.Tensor:
        nonlocal state
        sliced = {name: call[name][:, low:high].contiguous() for name in PER_TOKEN}
        output, state = stock(
            **{**call, **sliced, **chunk_metadata(high - low, call["cu_seqlens"]), "initial_state": state}
        )
        return output

    def export(index: int) -> None:
        nonlocal state
        slot = exports.slots[index : index + 1]
        cache.index_copy_(0, slot, state.to(cache.dtype))
        state = cache.index_select(0, slot).to(state.dtype)

    output = recurrence.run_segments(*bounds, exports.cuts if row == exports.prefill_row else (), run, export)
    return output, state
