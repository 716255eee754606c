"""vLLM's CPU attention with our kernel in front: what qualifies is ours, the rest is the engine's as ever."""

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType, MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl, CPUAttentionMetadata

from paceline.engine_ext.page_gate.gate import GATE, layout_of
from paceline.kernels.arguments import HEAD_SIZE, SLOT_TOKENS, PagedPrefill, check_lengths, check_pages, check_shapes
from paceline.kernels.dispatch import Layer, refusals
from paceline.kernels.loader import DTYPES, cpu_kernels
from paceline.kernels.ops import debugging


class PageGateBackend(CPUAttentionBackend):
    """The CPU backend, for pages that are multiples of 16 tokens where the gate takes the model's layers."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Return what the page must be a multiple of: what is left to the engine's kernels gets a page for them."""
        if GATE.any_page:
            return [MultipleOf(SLOT_TOKENS)]
        return list(CPUAttentionBackend.get_supported_kernel_block_sizes(kv_cache_spec))

    @staticmethod
    def get_impl_cls() -> type["PageGateImpl"]:
        """Return the implementation of a layer."""
        return PageGateImpl


class PageGateImpl(CPUAttentionBackendImpl):
    """One layer's attention. The engine's own code fills the cache, ours reads it."""

    _refusals: tuple[str, ...] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        GATE.counters.rank = get_current_vllm_config().parallel_config.data_parallel_index

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend; arguments and result as in the class above, `output` [tokens, heads, 256]."""
        if attn_metadata is None or output_scale is not None or output_block_scale is not None:
            return self._stock(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        if self._refusals is None:
            self._refusals = refusals(self._describe(layer, query, kv_cache))
        causal = attn_metadata.causal and attn_metadata.dynamic_causal is None
        refused = self._refusals if causal else (*self._refusals, "NotCausal")
        if refused:
            GATE.counters.refuse(refused)
            return self._stock(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        rows = attn_metadata.num_actual_tokens
        attend(query[:rows], kv_cache, attn_metadata, output[:rows], self.scale)
        GATE.counters.serve(rows)
        return output

    def _stock(self, *arguments: Any) -> torch.Tensor:
        return super().forward(*arguments)

    def _describe(self, layer: Any, query: torch.Tensor, kv_cache: torch.Tensor) -> Layer:
        return Layer(
            head_size=self.head_size,
            page_size=kv_cache.shape[2] if kv_cache.dim() == len("BHTE") else 0,
            dtype=query.dtype,
            cache_dtype=kv_cache.dtype,
            device=query.device.type,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            decoder=self.attn_type == AttentionType.DECODER,
            sliding_window=self.sliding_window != -1,
            soft_cap=self.logits_soft_cap > 0,
            alibi=self.alibi_slopes is not None,
            sinks=self.sinks is not None,
            cache_layout=layout_of(str(layer.isa)),
            measured=GATE.is_measured(query.dtype),
        )


def cache_views(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of an engine's cache as [blocks, kv heads, page, 256].

    The engine announces [blocks, kv heads, page, 512], but a head's part of a block holds all keys with their tokens
    contiguous, then all values with their elements contiguous.
    """
    blocks, heads, page, _ = kv_cache.shape
    shape, (block, head, *_), first = (blocks, heads, page, HEAD_SIZE), kv_cache.stride(), kv_cache.storage_offset()
    keys = kv_cache.as_strided(shape, (block, head, 1, page), first)
    return keys, kv_cache.as_strided(shape, (block, head, HEAD_SIZE, 1), first + page * HEAD_SIZE)


def prefill_call(
    query: torch.Tensor, kv_cache: torch.Tensor, metadata: CPUAttentionMetadata, out: torch.Tensor, scale: float
) -> PagedPrefill:
    """Return the kernel's call over a step's requests, prefilling and decoding ones alike."""
    keys, values = cache_views(kv_cache)
    batch = metadata.seq_lens.shape[0]
    return PagedPrefill(
        query=query.view(-1, query.shape[-2], HEAD_SIZE),
        key_cache=keys,
        value_cache=values,
        block_table=metadata.block_table,
        query_start=metadata.query_start_loc[: batch + 1],
        seq_lens=metadata.seq_lens,
        out=out.view(-1, query.shape[-2], HEAD_SIZE),
        scale=scale,
    )


def attend(
    query: torch.Tensor, kv_cache: torch.Tensor, metadata: CPUAttentionMetadata, out: torch.Tensor, scale: float
) -> None:
    """Run the kernel over a step's requests. Raises as `paceline.kernels.ops.paged_prefill` does."""
    call = prefill_call(query, kv_cache, metadata, out, scale)
    check_shapes(call, tuple(DTYPES))
    if debugging():
        check_lengths(call)
        check_pages(call)
    cpu_kernels().run(call)
