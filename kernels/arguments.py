"""The arguments of a paged prefill, the same for every device, and the checks made before anything is launched."""

from dataclasses import dataclass
from typing import Final

import torch

HEAD_SIZE: Final = 256
SLOT_TOKENS: Final = 16
"""Tokens that are contiguous in every page: pages are multiples of it, so a slot never straddles two."""


class PageIndexError(IndexError):
    """A block table names a block that the cache does not have."""


@dataclass(frozen=True)
class PagedPrefill:
    """One causal attention call over a paged cache; shapes as in `paceline.kernels.ops.paged_prefill`."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    out: torch.Tensor
    scale: float

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.key_cache.shape[2]

    @property
    def num_sequences(self) -> int:
        """Sequences of the batch."""
        return self.seq_lens.shape[0]

    def layout(self) -> dict[str, int]:
        """Return the addresses of the tensors and their strides in elements, named as in the kernels' own structures.

        The stride within a page of keys is left out: it is a token's on CUDA and an element's on CPU.
        """
        query, key, value, out = self.query, self.key_cache, self.value_cache, self.out
        return {
            "query": query.data_ptr(),
            "out": out.data_ptr(),
            "key": key.data_ptr(),
            "value": value.data_ptr(),
            "block_table": self.block_table.data_ptr(),
            "query_start": self.query_start.data_ptr(),
            "seq_lens": self.seq_lens.data_ptr(),
            "query_token_stride": query.stride(0),
            "query_head_stride": query.stride(1),
            "out_token_stride": out.stride(0),
            "out_head_stride": out.stride(1),
            "key_block_stride": key.stride(0),
            "key_head_stride": key.stride(1),
            "value_block_stride": value.stride(0),
            "value_head_stride": value.stride(1),
            "value_token_stride": value.stride(2),
            "table_stride": self.block_table.stride(0),
        }


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_shapes(call: PagedPrefill, dtypes: tuple[torch.dtype, ...]) -> None:
    """Refuse tensors that don't fit together. Raises ValueError (shapes, devices) or TypeError (dtypes)."""
    query, key, value = call.query, call.key_cache, call.value_cache
    if query.dtype not in dtypes:
        raise TypeError(f"query has dtype {query.dtype}: this device's kernel takes {', '.join(map(str, dtypes))}")
    for name, tensor in (("key_cache", key), ("value_cache", value), ("out", call.out)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}, the query {query.dtype}: they must be equal")
    _check(query.dim() == 3, f"query has shape {tuple(query.shape)}: it must be [tokens, heads, {HEAD_SIZE}]")
    _check(query.shape[2] == HEAD_SIZE, f"head size {query.shape[2]}: this kernel is for {HEAD_SIZE}")
    _check(call.out.shape == query.shape, f"out has shape {tuple(call.out.shape)}, the query {tuple(query.shape)}")
    _check(key.dim() == 4, f"key_cache has shape {tuple(key.shape)}: it must be [blocks, kv heads, page, {HEAD_SIZE}]")
    _check(key.shape[3] == HEAD_SIZE, f"key_cache has head size {key.shape[3]}: this kernel is for {HEAD_SIZE}")
    _check(value.shape == key.shape, f"value_cache has shape {tuple(value.shape)}, key_cache {tuple(key.shape)}")
    _check(call.page_size % SLOT_TOKENS == 0 and call.page_size > 0, f"page {call.page_size}: not a multiple of 16")
    _check(
        0 < key.shape[1] <= query.shape[1] and query.shape[1] % key.shape[1] == 0,
        f"{query.shape[1]} heads don't share {key.shape[1]}",
    )
    _check(call.scale > 0, f"scale {call.scale}: it must be above zero")
    _check_batch(call)


def _check_batch(call: PagedPrefill) -> None:
    for name, tensor, dims in (
        ("block_table", call.block_table, 2),
        ("query_start", call.query_start, 1),
        ("seq_lens", call.seq_lens, 1),
    ):
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: it must be int32")
        _check(tensor.dim() == dims, f"{name} has {tensor.dim()} dimensions: it must have {dims}")
        _check(tensor.numel() == 0 or tensor.stride(-1) == 1, f"{name} must be contiguous in its last dimension")
    tensors = (call.key_cache, call.value_cache, call.block_table, call.query_start, call.seq_lens, call.out)
    _check(all(t.device == call.query.device for t in tensors), "all tensors must be on the query's device")
    batch = call.num_sequences
    _check(call.query_start.shape[0] == batch + 1, f"query_start has {call.query_start.shape[0]} entries for {batch}")
    _check(
        call.block_table.shape[0] >= batch, f"block_table has {call.block_table.shape[0]} rows for {batch} sequences"
    )


def check_lengths(call: PagedPrefill) -> None:
    """Refuse lengths that the batch's tensors can't hold. Reads the values: on a GPU this waits for the device."""
    starts, lengths = call.query_start.tolist(), call.seq_lens.tolist()
    _check(starts[0] == 0, f"query_start begins with {starts[0]}: it must begin with 0")
    _check(starts[-1] <= call.query.shape[0], f"query_start ends at {starts[-1]} of {call.query.shape[0]} query tokens")
    capacity = call.block_table.shape[1] * call.page_size
    for s, length in enumerate(lengths):
        rows = starts[s + 1] - starts[s]
        _check(rows >= 0, f"query_start falls from {starts[s]} to {starts[s + 1]}")
        _check(length >= rows, f"sequence {s} has {rows} query tokens but a length of {length}")
        _check(rows == 0 or length <= capacity, f"sequence {s} has {length} tokens, its pages hold {capacity}")


def check_pages(call: PagedPrefill) -> None:
    """Refuse block ids outside the cache: the debug mode's check. Reads every used entry of the table.

    Raises `PageIndexError` that names the sequence, the page and the id.
    """
    blocks, rows = call.key_cache.shape[0], call.query_start.diff().tolist()
    for s, length in enumerate(call.seq_lens.tolist()):
        if rows[s] == 0:
            continue  # its entries are never read, whatever they are
        used = call.block_table[s, : -(-length // call.page_size)]
        bad = ((used < 0) | (used >= blocks)).nonzero()
        if bad.numel():
            page = int(bad[0])
            message = f"sequence {s}, page {page}: block {int(used[page])} is outside the cache's {blocks} blocks"
            raise PageIndexError(message)
