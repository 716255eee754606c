"""The CPU twin against the dense reference: every level that this machine runs, and AVX512 and AMX emulated."""

import functools
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from batches import Batch, assert_close, make, token_place
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import EMULATED_SUFFIX, Twin, levels_under_test

from paceline.kernels.reference import paged_prefill_reference

LEVELS = [(dtype, level) for dtype in (torch.float32, torch.bfloat16) for level in levels_under_test(dtype)]
each_level = pytest.mark.parametrize(
    ("dtype", "level"), LEVELS, ids=[f"{d}-{n}".removeprefix("torch.") for d, n in LEVELS]
)
FAST_LEVELS = [(dtype, level) for dtype, level in LEVELS if level != "portable" and EMULATED_SUFFIX not in level]
MIXED = Batch(rows=(1, 33, 0, 5, 200, 16), lengths=(1000, 33, 50, 1500, 403, 3111), heads=6, kv_heads=1)


@functools.cache
def reference(batch: Batch) -> torch.Tensor:
    return paged_prefill_reference(make(batch), torch.float32)


def run(kernels: Twin, batch: Batch, level: str) -> torch.Tensor:
    call = make(batch)
    kernels.run(call, level)
    return call.out


@pytest.mark.parametrize(
    ("dtype", "level", "rows"),
    [(d, n, 32) for d, n in LEVELS] + [(d, n, 784) for d, n in FAST_LEVELS],
)
def test_sources_own_case_on_its_pages(kernels: Twin, dtype: torch.dtype, level: str, rows: int) -> None:
    batch = Batch(rows=(rows,), lengths=(4804,), dtype=dtype)
    outputs = [run(kernels, batch.with_page(page), level) for page in (784, 816, 896)]
    assert_close(outputs[0], reference(batch))
    assert all(torch.equal(a, b) for a, b in pairwise(outputs))


@each_level
def test_every_page_gives_the_same_bits(kernels: Twin, dtype: torch.dtype, level: str) -> None:
    pages = (16, 32, 528, 784, 800, 816, 832, 896, 1056, 1568)
    batch = replace(MIXED, dtype=dtype)
    outputs = [run(kernels, batch.with_page(page), level) for page in pages]
    assert_close(outputs[0], reference(batch))
    assert all(torch.equal(a, b) for a, b in pairwise(outputs))


@each_level
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 16), (2, 17), (15, 31), (17, 17), (127, 129), (129, 640)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 1), (12, 2), (4, 4), (16, 2), (40, 1)])
def test_edges_of_tiles_and_slots(
    kernels: Twin, dtype: torch.dtype, level: str, rows: int, length: int, heads: int, kv_heads: int
) -> None:
    batch = Batch(rows=(rows,), lengths=(length,), page=48, heads=heads, kv_heads=kv_heads, dtype=dtype)
    assert_close(run(kernels, batch, level), reference(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_whole_prompt_of_4096_rows(kernels: Twin, dtype: torch.dtype) -> None:
    batch = Batch(rows=(4096,), lengths=(4096,), heads=6, kv_heads=1, dtype=dtype)
    level = kernels.levels(dtype)[-1]
    assert_close(run(kernels, batch, level), reference(batch))


EDGES = (16, 32, 48, 64, 128, 256, 512, 1024, 2048)
ROWS = [edge + step for edge in EDGES for step in (-1, 0, 1)]
ROWS += [1, 2, 3, 5, 8, 24, 96, 192, 384, 640, 784, 1000, 1536, 3000, 4095]
"""Around every multiple of a tile's rows and of a tile's keys, up to a step's limit of tokens."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_query_rows_around_the_tiles(kernels: Twin, dtype: torch.dtype) -> None:
    for rows in ROWS:
        batch = Batch(rows=(rows,), lengths=(rows + 37,), page=784, heads=2, kv_heads=1, dtype=dtype, seed=rows)
        assert_close(run(kernels, batch, kernels.levels(dtype)[-1]), paged_prefill_reference(make(batch)))


SEQUENCES = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 700)), min_size=1, max_size=5)


@each_level
@given(
    sequences=SEQUENCES,
    page=st.integers(1, 100).map(lambda slots: 16 * slots),
    heads=st.sampled_from(((1, 1), (6, 1), (12, 2), (4, 4))),
)
@settings(max_examples=25, deadline=None)
def test_any_batch_on_any_page(
    kernels: Twin,
    dtype: torch.dtype,
    level: str,
    sequences: list[tuple[int, int]],
    page: int,
    heads: tuple[int, int],
) -> None:
    rows = tuple(new for new, _ in sequences)
    lengths = tuple(max(1, new + known) for new, known in sequences)
    batch = Batch(rows, lengths, page, *heads, dtype=dtype)
    assert_close(run(kernels, batch, level), paged_prefill_reference(make(batch), torch.float32))


@each_level
def test_a_sequence_alone_gives_the_bits_it_gives_in_a_batch(kernels: Twin, dtype: torch.dtype, level: str) -> None:
    call = make(replace(MIXED, dtype=dtype))
    kernels.run(call, level)
    together = call.out.clone()
    for s, (first, end) in enumerate(pairwise(call.query_start.tolist())):
        if first == end:
            continue
        alone = make(replace(MIXED, dtype=dtype))
        starts = alone.query_start.clone()
        starts[: s + 1], starts[s + 1 :] = first, end
        alone.query_start.copy_(starts)
        alone.out.zero_()
        kernels.run(alone, level)
        assert torch.equal(alone.out[first:end], together[first:end])


@each_level
def test_the_number_of_threads_does_not_change_a_bit(kernels: Twin, dtype: torch.dtype, level: str) -> None:
    batch = replace(MIXED, dtype=dtype)
    threads = torch.get_num_threads()
    outputs = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        outputs.append(run(kernels, batch, level))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in pairwise(outputs))


@each_level
def test_strided_views_of_a_larger_allocation(kernels: Twin, dtype: torch.dtype, level: str) -> None:
    call = make(Batch(rows=(40,), lengths=(333,), page=48, heads=6, kv_heads=2, dtype=dtype))
    expected = paged_prefill_reference(call, torch.float32)
    wide = torch.full((2 * len(call.query), 6, 300), float("nan"), dtype=dtype)
    query, out = wide[::2, :, 20:276], torch.empty_like(wide)[1::2, :, :256]
    query.copy_(call.query)
    blocks = torch.full((len(call.key_cache), 5, 2, 48, 256), float("nan"), dtype=dtype)
    value = blocks[:, 1:5:2, 1]
    value.copy_(call.value_cache)
    strided = type(call)(**{**vars(call), "query": query, "value_cache": value, "out": out})
    kernels.run(strided, level)
    assert_close(out, expected)


@each_level
@pytest.mark.parametrize("heads", [1, 5, 8, 16])
def test_one_decoding_row_over_keys_cut_among_threads(
    kernels: Twin, dtype: torch.dtype, level: str, heads: int
) -> None:
    batch = Batch(rows=(1, 1), lengths=(2_100, 700), heads=heads, kv_heads=1, dtype=dtype)
    outputs = [run(kernels, batch.with_page(page), level) for page in (48, 784)]
    assert_close(outputs[0], reference(batch))
    assert all(torch.equal(a, b) for a, b in pairwise(outputs))


@each_level
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("rows", [40, 1])
def test_what_is_not_finite_spreads_as_in_the_reference(
    kernels: Twin, dtype: torch.dtype, level: str, bad: float, where: str, rows: int
) -> None:
    call = make(Batch(rows=(rows, 3), lengths=(170, 90), page=48, heads=6, kv_heads=1, dtype=dtype))
    if where == "query":
        call.query[rows // 5, 2, 11] = bad
    else:
        cache = call.key_cache if where == "key" else call.value_cache
        block, offset = token_place(call, 0, 150)  # rows 0 to 19 of 40 come before it
        cache[block, 0, offset, 11] = bad
    kernels.run(call, level)
    expected = paged_prefill_reference(call, torch.float32)
    assert not expected.isfinite().all()
    torch.testing.assert_close(call.out.float(), expected.float(), atol=2e-3, rtol=1e-2, equal_nan=True)


@each_level
def test_a_context_whose_first_tile_scores_minus_infinity(kernels: Twin, dtype: torch.dtype, level: str) -> None:
    call = make(Batch(rows=(2,), lengths=(300,), page=48, heads=1, kv_heads=1, dtype=dtype))
    call.query[:, :, 0] = 1.0
    for token in range(128):
        block, offset = token_place(call, 0, token)
        call.key_cache[block, :, offset, 0] = -float("inf")
    kernels.run(call, level)
    expected = paged_prefill_reference(call, torch.float32)
    assert expected.isfinite().all()
    assert_close(call.out, expected)


@each_level
def test_scores_far_apart_leave_only_the_largest(kernels: Twin, dtype: torch.dtype, level: str) -> None:
    call = make(Batch(rows=(1,), lengths=(200,), page=16, heads=1, kv_heads=1, dtype=dtype))
    call.query.fill_(64.0)
    call.key_cache.copy_(torch.where(call.key_cache.isnan(), call.key_cache, torch.zeros(())))
    block, offset = token_place(call, 0, 37)
    call.key_cache[block, :, offset] = 1.0
    kernels.run(call, level)
    assert torch.equal(call.out[0], call.value_cache[block, :, offset])
