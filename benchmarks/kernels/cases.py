"""Attention steps for the kernel benchmark: vLLM's CPU operator and ours on the same data, each from its own cache."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from instructions import InstructionSet
from vllm import _custom_ops as ops
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata, _get_attn_isa

from paceline.engine_ext.page_gate.backend import prefill_call
from paceline.engine_ext.page_gate.gate import PLAIN_LAYOUTS
from paceline.kernels.loader import cpu_kernels

HEADS, KV_HEADS, HEAD = 12, 2, 256
SCALE = HEAD**-0.5
PLAIN = "vec"
AMX, AVX2 = "amx", "avx2"


@dataclass(frozen=True)
class Case:
    """A prefill chunk, or one decoding row, at the end of a sequence of `context` tokens."""

    dtype: torch.dtype
    page: int
    context: int
    instructions: InstructionSet
    rows: int = 784

    @property
    def flops(self) -> int:
        """Multiplications and additions over the keys that each row sees."""
        pairs = self.rows * (self.context - self.rows) + self.rows * (self.rows + 1) // 2
        return 4 * HEAD * HEADS * pairs

    @property
    def stock_kernel(self) -> str:
        """The kernel that vLLM picks for this dtype and page with these instructions."""
        picked = str(_get_attn_isa(self.dtype, self.page, HEAD))
        return PLAIN if picked == AMX and self.instructions is not InstructionSet.ALL else picked

    @property
    def level(self) -> str:
        """The level of our kernel that runs."""
        levels = cpu_kernels().levels(self.dtype)
        if self.instructions is InstructionSet.AVX2:
            return AVX2
        return [name for name in levels if name != AMX or self.instructions is InstructionSet.ALL][-1]


def prepare() -> None:
    """Load vLLM's operators and ask the operating system for AMX, as an engine's workers do."""
    current_platform.import_kernels()
    torch.cpu._init_amx()


def sides(case: Case) -> dict[str, Callable[[], torch.Tensor]]:
    """Return vLLM's call and ours; each reads a cache in the layout that its kernel takes.

    Where vLLM packs its cache for AMX those are two layouts: such a pair compares two engines, of which the one that
    packs it refuses our kernel.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, case.context, KV_HEADS, HEAD, generator=generator).to(case.dtype)
    query = torch.randn(case.rows, HEADS, HEAD, generator=generator).to(case.dtype)
    theirs = case.stock_kernel
    ours = theirs if theirs in PLAIN_LAYOUTS else PLAIN
    return {
        "vllm": _stock(query, *_step(case, tokens, theirs)),
        "paceline": _ours(query, *_step(case, tokens, ours), case.level),
    }


def _step(case: Case, tokens: torch.Tensor, isa: str) -> tuple[torch.Tensor, CPUAttentionMetadata]:
    pages = -(-case.context // case.page)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(1)).to(torch.int32)[None]
    cache = torch.zeros(pages, KV_HEADS, case.page, 2 * HEAD, dtype=case.dtype)
    keys, values = cache.view(pages, KV_HEADS, 2 * case.page, HEAD).chunk(2, dim=2)
    positions = torch.arange(case.context)
    slots = table[0].long()[positions // case.page] * case.page + positions % case.page
    ops.cpu_attn_reshape_and_cache(tokens[0], tokens[1], keys, values, slots, isa)
    starts = torch.tensor([0, case.rows], dtype=torch.int32)
    lengths = torch.tensor([case.context], dtype=torch.int32)
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD,
        seq_lens=lengths,
        dtype=case.dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    no_slots = torch.empty(0, dtype=torch.long)
    return cache, CPUAttentionMetadata(case.rows, case.rows, starts, case.context, lengths, table, no_slots, plan)


def _stock(query: torch.Tensor, cache: torch.Tensor, metadata: CPUAttentionMetadata) -> Callable[[], torch.Tensor]:
    out = torch.empty_like(query)
    keys, values = cache.view(len(cache), KV_HEADS, -1, HEAD).chunk(2, dim=2)

    def call() -> torch.Tensor:
        ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=keys,
            value_cache=values,
            output=out,
            query_start_loc=metadata.query_start_loc,
            seq_lens=metadata.seq_lens,
            scale=SCALE,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=metadata.block_table,
            softcap=0.0,
            scheduler_metadata=metadata.scheduler_metadata,
            s_aux=None,
        )
        return out

    return call


def _ours(
    query: torch.Tensor, cache: torch.Tensor, metadata: CPUAttentionMetadata, level: str
) -> Callable[[], torch.Tensor]:
    arguments = prefill_call(query, cache, metadata, torch.empty_like(query), SCALE)

    def call() -> torch.Tensor:
        cpu_kernels().run(arguments, level)
        return arguments.out

    return call
