"""States exported inside vLLM's CPU gated delta net: its kernels run once over the span, only the recurrence is cut."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any, Final

import torch

from paceline.engine_ext.coalescing import recurrence, worker


@dataclass(frozen=True)
class _Cut:
    """The planned row within the prefill rows of the call that is under way."""

    prefill_row: int
    exports: worker.RowExports


@dataclass
class _Current:
    cut: _Cut | None = None


_current: Final = _Current()


@contextmanager
def _cutting(cut: _Cut) -> Iterator[None]:
    _current.cut = cut
    try:
        yield
    finally:
        _current.cut = None


class CuttingOps:
    """vLLM's kernels, with a gated delta rule that can be cut; everything else passes through."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)

    def chunk_gated_delta_rule_cpu(self, **call: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the rule over all prefill rows; the planned one in segments. Tensors are [1, tokens, heads, dim]."""
        stock = self.kernels.chunk_gated_delta_rule_cpu
        cut = _current.cut
        if cut is None:
            return stock(**call)
        starts = call["cu_seqlens"].tolist()
        outputs = []
        for row, (start, end) in enumerate(pairwise(starts)):
            exports = cut.exports if row == cut.prefill_row else None
            outputs.append(_run_row(stock, call, row, start, end, exports))
        return torch.cat(outputs, dim=1), None


def _run_row(
    stock: Callable[..., Any], call: dict[str, Any], row: int, start: int, end: int, exports: worker.RowExports | None
) -> torch.Tensor:
    states = call["initial_state"]
    per_token = ("query", "key", "value", "g", "beta")

    def run(low: int, high: int) -> torch.Tensor:
        sliced = {name: call[name][:, low:high].contiguous() for name in per_token}
        bounds = torch.tensor([0, high - low], dtype=call["cu_seqlens"].dtype)
        indices = call["initial_state_indices"][row : row + 1]
        output, _ = stock(**{**call, **sliced, "cu_seqlens": bounds, "initial_state_indices": indices})
        return output

    def export(index: int) -> None:
        assert exports is not None
        recurrence.copy_slot(states, exports.running_slot, exports.slots[index : index + 1])

    cuts = exports.cuts if exports is not None else ()
    return recurrence.run_segments(start, end, cuts, run, export)


def wrap_attention(stock: Callable[..., None], is_conv_state_dim_first: Callable[[], bool]) -> Callable[..., None]:
    """Wrap the layer's computation without drafts: a planned row leaves its states in the cache."""

    @wraps(stock)
    def attention(layer: Any, metadata: Any, mixed_qkv: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        exports = getattr(metadata, worker.EXPORTS_ATTRIBUTE, None)
        if exports is None:
            stock(layer, metadata, mixed_qkv, *args, **kwargs)
            return
        with _cutting(_Cut(exports.row - metadata.num_decodes, exports)):
            stock(layer, metadata, mixed_qkv, *args, **kwargs)
        export_conv_states(layer, exports, mixed_qkv, dim_first=is_conv_state_dim_first())
        worker.mark_written(layer.prefix)

    return attention


def export_conv_states(layer: Any, exports: worker.RowExports, mixed_qkv: torch.Tensor, *, dim_first: bool) -> None:
    """Write the convolution's state at each cut; `mixed_qkv` [tokens, dim] is its input for the whole batch."""
    states = layer.kv_cache[0]
    width = layer.conv1d.weight.size(-1) - 1
    for index, cut in enumerate(exports.cuts):
        end = exports.token_start + cut
        slot = exports.slots[index : index + 1]
        recurrence.write_conv_state(states, slot, mixed_qkv[end - width : end], dim_first=dim_first)
