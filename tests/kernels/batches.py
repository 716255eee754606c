"""Batches of sequences in a paged cache, laid out as an engine does: shuffled pages, ragged ends, foreign bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from paceline.kernels.arguments import PagedPrefill

HEAD = 256
SCALE = HEAD**-0.5
ATOL, RTOL = 2e-3, 1e-2


@dataclass(frozen=True)
class Batch:
    """Query rows and lengths of a case's sequences, its heads, page and dtype; `seed` fixes the data, not the pages."""

    rows: Sequence[int]
    lengths: Sequence[int]
    page: int = 784
    heads: int = 12
    kv_heads: int = 2
    dtype: torch.dtype = torch.float32
    tokens_first: bool = True
    seed: int = 0

    def with_page(self, page: int) -> "Batch":
        """Return the same data on other pages."""
        return replace(self, page=page)


def empty_caches(batch: Batch, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return key and value caches full of NaN, as views [blocks, kv heads, page, 256] of one allocation.

    `tokens_first` is the CPU engine's layout: a block of a head holds its keys with the tokens contiguous, then its
    values. Otherwise both have the elements contiguous, as on a GPU.
    """
    raw = torch.full((blocks, batch.kv_heads, 2, batch.page * HEAD), float("nan"), dtype=batch.dtype)
    values = raw[:, :, 1].unflatten(-1, (batch.page, HEAD))
    if batch.tokens_first:
        return raw[:, :, 0].unflatten(-1, (HEAD, batch.page)).transpose(2, 3), values
    return raw[:, :, 0].unflatten(-1, (batch.page, HEAD)), values


def make(batch: Batch) -> PagedPrefill:
    """Return the call of a batch. Slots that hold no token of the batch hold NaN."""
    data = torch.Generator().manual_seed(batch.seed)
    pages = [-(-length // batch.page) for length in batch.lengths]
    blocks = sum(pages) + 3
    key_cache, value_cache = empty_caches(batch, blocks)
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(batch.page)).tolist()
    table = torch.zeros(len(pages), max(pages), dtype=torch.int32)
    for s, length in enumerate(batch.lengths):
        for cache in (key_cache, value_cache):
            tokens = torch.randn(length, batch.kv_heads, HEAD, generator=data).to(batch.dtype)
            for p in range(pages[s]):
                part = tokens[p * batch.page : (p + 1) * batch.page]
                cache[order[p], :, : len(part)] = part.transpose(0, 1)
        table[s, : pages[s]] = torch.tensor(order[: pages[s]], dtype=torch.int32)
        del order[: pages[s]]
    query = torch.randn(sum(batch.rows), batch.heads, HEAD, generator=data).to(batch.dtype)
    starts = torch.tensor([0, *batch.rows]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(batch.lengths, dtype=torch.int32)
    return PagedPrefill(query, key_cache, value_cache, table, starts, lengths, torch.empty_like(query), SCALE)


def token_place(call: PagedPrefill, sequence: int, token: int) -> tuple[int, int]:
    """Return the block and the offset in it of a sequence's token."""
    return int(call.block_table[sequence, token // call.page_size]), token % call.page_size


def assert_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare within the tolerance that the source states for this kernel."""
    torch.testing.assert_close(out.float(), expected.float(), atol=ATOL, rtol=RTOL)
