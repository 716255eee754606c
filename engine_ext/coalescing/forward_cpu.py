"""States exported inside vLLM's CPU gated delta net: its kernels run once over the span, only the recurrence is cut."""

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any, Final

import torch

from paceline.engine_ext.coalescing import recurrence, worker

PER_TOKEN: Final = ("query", "key", "value", "g", "beta")


class CuttingOps:
    """vLLM's kernels, with a gated delta rule that can be cut; everything else passes through."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)

    def chunk_gated_delta_rule_cpu(self, **call: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the rule over all prefill rows; the planned one in segments. Tensors are [1, tokens, heads, dim]."""
        stock = self.kernels.chunk_gated_delta_rule_cpu
        cut = worker.current_cut()
        if cut is None:
            return stock(**call)
        rows = enumerate(pairwise(cut.exports.prefill_bounds))
        outputs = [_run_row(stock, call, row, bounds, cut.exports) for row, bounds in rows]
        return torch.cat(outputs, dim=1), None


def _run_row(
    stock: Callable[..., Any], call: dict[str, Any], row: int, bounds: tuple[int, int], exports: worker.RowExports
) -> torch.Tensor:
    states = call["initial_state"]
    indices = call["initial_state_indices"][row : row + 1]

    def run(low: int, high: int) -> torch.Tensor:
        sliced = {name: call[name][:, low:high].contiguous() for name in PER_TOKEN}
        lengths = torch.tensor([0, high - low], dtype=call["cu_seqlens"].dtype)
        output, _ = stock(**{**call, **sliced, "cu_seqlens": lengths, "initial_state_indices": indices})
        return output

    def export(index: int) -> None:
        recurrence.copy_slot(states, exports.running_slot, exports.slots[index : index + 1])

    cuts = exports.cuts if row == exports.prefill_row else ()
    return recurrence.run_segments(*bounds, cuts, run, export)


def wrap_attention(stock: Callable[..., None], is_conv_state_dim_first: Callable[[], bool]) -> Callable[..., None]:
    """Wrap the layer's computation without drafts: a planned row leaves its states in the cache."""

    @wraps(stock)
    def attention(layer: Any, metadata: Any, mixed_qkv: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        exports = getattr(metadata, worker.EXPORTS_ATTRIBUTE, None)
        if exports is None:
            stock(layer, metadata, mixed_qkv, *args, **kwargs)
            return
        with worker.cutting(exports, layer):
            stock(layer, metadata, mixed_qkv, *args, **kwargs)
        recurrence.export_conv_states(layer, exports, mixed_qkv, dim_first=is_conv_state_dim_first())
        worker.mark_written(layer.prefix)

    return attention
