"""Steps of vLLM's CPU attention: a cache that vLLM's own operator filled, queries, and a layer to run on them."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

from paceline.engine_ext.page_gate.backend import PageGateImpl

HEADS, KV_HEADS, HEAD = 6, 1, 256
ROWS, LENGTHS = (1, 1, 40, 300), (1500, 17, 900, 300)
"""Two decoding requests beside two prefilling ones."""


@dataclass
class Step:
    """A step's queries and the cache that vLLM's own operator filled."""

    query: torch.Tensor
    cache: torch.Tensor
    metadata: CPUAttentionMetadata


def make_step(page: int, dtype: torch.dtype, isa: str) -> Step:
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *ROWS]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    pages = [-(-length // page) for length in LENGTHS]
    order = torch.randperm(sum(pages) + 2, generator=generator).to(torch.int32)
    # Bytes of other layers: whatever is not written here must not matter.
    cache = torch.full((len(order), KV_HEADS, page, 2 * HEAD), float("nan"), dtype=dtype)
    table = torch.zeros(len(pages), max(pages), dtype=torch.int32)
    keys, values = cache.view(len(order), KV_HEADS, 2 * page, HEAD).chunk(2, dim=2)
    for s, length in enumerate(LENGTHS):
        table[s, : pages[s]], order = order[: pages[s]], order[pages[s] :]
        positions = torch.arange(length)
        slots = table[s].long()[positions // page] * page + positions % page
        tokens = torch.randn(2, length, KV_HEADS, HEAD, generator=generator).to(dtype)
        ops.cpu_attn_reshape_and_cache(tokens[0], tokens[1], keys, values, slots, isa)
    query = torch.randn(sum(ROWS), HEADS, HEAD, generator=generator).to(dtype)
    scheduling = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(ROWS),
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD,
        seq_lens=lengths,
        dtype=dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    metadata = CPUAttentionMetadata(
        num_actual_tokens=sum(ROWS),
        max_query_len=max(ROWS),
        query_start_loc=starts,
        max_seq_len=max(LENGTHS),
        seq_lens=lengths,
        block_table=table,
        slot_mapping=torch.empty(0, dtype=torch.long),
        scheduler_metadata=scheduling,
    )
    return Step(query, cache, metadata)


def implementation(**changes: Any) -> PageGateImpl:
    impl = PageGateImpl.__new__(PageGateImpl)
    fields = {
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_size": HEAD,
        "scale": HEAD**-0.5,
        "attn_type": "decoder",
        "sliding_window": -1,
        "logits_soft_cap": 0,
        "alibi_slopes": None,
        "sinks": None,
        "kv_cache_dtype": "auto",
    }
    vars(impl).update(fields | changes)
    return impl


def layer(isa: str) -> SimpleNamespace:
    return SimpleNamespace(isa=isa, _k_scale_float=1.0, _v_scale_float=1.0)


def forward(impl: PageGateImpl, step: Step, isa: str) -> torch.Tensor:
    out = torch.empty_like(step.query)
    impl.forward(layer(isa), step.query, step.query, step.query, step.cache, step.metadata, out)
    return out
