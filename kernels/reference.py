"""The dense reference: the paged cache gathered into rows, and plain softmax attention in a wide dtype."""

import torch

from paceline.kernels.arguments import PagedPrefill


def _gather(cache: torch.Tensor, pages: torch.Tensor, length: int) -> torch.Tensor:
    """Return the first `length` tokens of a sequence as [kv heads, length, 256]."""
    blocks = cache[pages.long()]
    return blocks.permute(1, 0, 2, 3).flatten(1, 2)[:, :length]


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Attend [rows, 256] to [length, 256]; the last row sees every key, each earlier one a key less.

    A hidden key has no influence, whatever it holds: rows with infinite or NaN values among the hidden ones are
    computed over the visible ones alone, since zero times NaN is NaN.
    """
    rows, length = query.shape[0], keys.shape[0]
    visible = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)
    weights = (query @ keys.T * scale).masked_fill(~visible, float("-inf")).softmax(dim=-1)
    if values.isfinite().all():
        return weights @ values
    counts = range(length - rows + 1, length + 1)
    return torch.stack([weights[r, :n] @ values[:n] for r, n in enumerate(counts)])


def paged_prefill_reference(call: PagedPrefill, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return what `paged_prefill` should write to `out`, computed in `dtype` and rounded to the query's dtype."""
    out = torch.zeros_like(call.query, dtype=dtype)
    group = call.query.shape[1] // call.key_cache.shape[1]
    starts = call.query_start.tolist()
    for s, length in enumerate(call.seq_lens.tolist()):
        first, end = starts[s], starts[s + 1]
        if first == end:
            continue
        pages = call.block_table[s, : -(-length // call.page_size)]
        keys, values = (_gather(cache, pages, length).to(dtype) for cache in (call.key_cache, call.value_cache))
        for head in range(call.query.shape[1]):
            query = call.query[first:end, head].to(dtype)
            out[first:end, head] = _attend(query, keys[head // group], values[head // group], call.scale)
    return out.to(call.query.dtype)
