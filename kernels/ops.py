"""Paged prefill attention as a torch operator: `torch.ops.paceline.paged_prefill`, or `paged_prefill` below."""

import os
from typing import Any, Final

import torch

from paceline.kernels.arguments import PagedPrefill, check_lengths, check_pages, check_shapes
from paceline.kernels.cuda import cuda_kernel
from paceline.kernels.loader import DTYPES, cpu_kernels

DEBUG_VARIABLE = "PACELINE_KERNEL_DEBUG"
"""Set to 1, it has every block id that is read checked against the cache before a launch."""


def debugging() -> bool:
    """Tell whether block ids are checked before a launch."""
    return os.environ.get(DEBUG_VARIABLE) == "1"


def paged_prefill(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    """Write causal attention of the batch's last tokens over a paged cache to `out`.

    Args:
        query: [tokens, heads, 256], float32 or bfloat16 on CPU, float16 on CUDA.
        key_cache: [blocks, kv heads, page, 256], any block, head and (one) inner stride; the page is a multiple of 16.
            On CPU the tokens of a page are contiguous, on CUDA the elements of a token.
        value_cache: as `key_cache`, but always with the elements of a token contiguous.
        block_table: int32 [sequences, pages], the block of each page of a sequence.
        query_start: int32 [sequences + 1], where each sequence's query tokens begin; they are its last tokens.
        seq_lens: int32 [sequences], tokens of each sequence in the cache, the query tokens included.
        out: as `query`; rows that belong to no sequence stay as they are.
        scale: what scores are multiplied by, usually 256 ** -0.5.

    Raises:
        TypeError: for dtypes, ValueError for shapes, lengths (on CUDA in debug mode only) or views that the kernel
            can't take, `PageIndexError` (in debug mode) for block ids outside the cache: before anything is launched.
        KernelUnavailableError: where the kernel is not built or does not run here.

    """
    torch.ops.paceline.paged_prefill(query, key_cache, value_cache, block_table, query_start, seq_lens, out, scale)


_SCHEMA: Final = (
    "(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor query_start, Tensor seq_lens, "
    "Tensor(a!) out, float scale) -> ()"
)


def _on_cpu(*arguments: Any) -> None:
    call = PagedPrefill(*arguments)
    check_shapes(call, tuple(DTYPES))
    check_lengths(call)
    if debugging():
        check_pages(call)
    cpu_kernels().run(call)


def _on_cuda(*arguments: Any) -> None:
    """Compiled and emulated, never run on a GPU. Lengths are checked in debug mode only: reading them would wait."""
    call = PagedPrefill(*arguments)
    check_shapes(call, (torch.float16,))
    if debugging():
        check_lengths(call)
        check_pages(call)
    with torch.cuda.device(call.query.device):
        stream = torch.cuda.current_stream().cuda_stream
        cuda_kernel(torch.cuda.current_device()).launch(call, call.query.shape[0], stream)


def _on_fake_tensors(*arguments: Any) -> None:
    check_shapes(PagedPrefill(*arguments), (*DTYPES, torch.float16))


_operator = torch.library.custom_op(
    "paceline::paged_prefill", _on_cpu, mutates_args=("out",), device_types="cpu", schema=_SCHEMA
)
_operator.register_kernel("cuda", _on_cuda)
_operator.register_fake(_on_fake_tensors)
