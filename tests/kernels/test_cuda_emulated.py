"""The CUDA source under emulation on the CPU, through the real launcher: nothing below was run on a GPU.

The emulation runs the very same source, its driver stands in for libcuda.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from batches import Batch, assert_close, make, token_place
from toolchain import KERNELS, emulated_driver

from paceline.kernels import cuda
from paceline.kernels.arguments import PagedPrefill
from paceline.kernels.cuda import SHARED_BYTES, CudaKernel, choose_tile
from paceline.kernels.loader import KernelUnavailableError
from paceline.kernels.reference import paged_prefill_reference

TILES = tuple(SHARED_BYTES)
HALF = Batch(rows=(32,), lengths=(4804,), dtype=torch.float16, tokens_first=False)
SMALL = replace(HALF, rows=(1, 65, 0, 31), lengths=(700, 65, 40, 1100), heads=2, kv_heads=1)
Driver = Callable[[int], ctypes.CDLL]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    folder = tmp_path_factory.mktemp("emulated")
    return functools.cache(lambda tile: emulated_driver(folder, tile))


def launch(library: ctypes.CDLL, call: PagedPrefill, tile: int = 128, seed: int = 0) -> torch.Tensor:
    library.emulation_set_seed(ctypes.c_uint64(seed))
    call.out.fill_(float("nan"))
    longest = int(call.query_start.diff().max())
    CudaKernel(library, b"image", tile).launch(call, longest, stream=0)
    return call.out


def test_launcher_and_source_agree_on_sizes(driver: Driver) -> None:
    for tile, size in SHARED_BYTES.items():
        assert driver(tile).emulation_shared_bytes() == size
        assert driver(tile).emulation_argument_bytes() == ctypes.sizeof(cuda._Arguments)


def test_sources_own_case_on_its_pages(driver: Driver) -> None:
    batch = replace(HALF, heads=12, kv_heads=2)
    outputs = [launch(driver(128), make(batch.with_page(page))) for page in (784, 816, 896)]
    assert_close(outputs[0], paged_prefill_reference(make(batch), torch.float32))
    assert all(torch.equal(a, b) for a, b in pairwise(outputs))


def test_query_tiles_that_no_sequence_fills_change_nothing(driver: Driver) -> None:
    exact, generous = make(SMALL), make(SMALL)
    launch(driver(128), exact)
    generous.out.fill_(float("nan"))
    CudaKernel(driver(128), b"image", 128).launch(generous, len(generous.query), stream=0)
    assert torch.equal(generous.out, exact.out)


def test_sources_own_case_with_784_queries(driver: Driver) -> None:
    batch = replace(HALF, rows=(784,), heads=1, kv_heads=1)
    assert_close(launch(driver(128), make(batch)), paged_prefill_reference(make(batch), torch.float32))


@pytest.mark.parametrize("tile", TILES)
def test_every_page_gives_the_same_bits(driver: Driver, tile: int) -> None:
    pages = (16, 32, 528, 784, 800, 816, 832, 896, 1056, 1568)
    outputs = [launch(driver(tile), make(SMALL.with_page(page)), tile) for page in pages]
    assert_close(outputs[0], paged_prefill_reference(make(SMALL), torch.float32))
    assert all(torch.equal(a, b) for a, b in pairwise(outputs))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (2, 17), (31, 31), (33, 129), (64, 143)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 1), (12, 2), (2, 2)])
def test_edges_of_tiles_and_slots(driver: Driver, tile: int, rows: int, length: int, heads: int, kv_heads: int) -> None:
    batch = replace(HALF, rows=(rows,), lengths=(length,), page=48, heads=heads, kv_heads=kv_heads)
    assert_close(launch(driver(tile), make(batch), tile), paged_prefill_reference(make(batch), torch.float32))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_what_is_not_finite_spreads_as_in_the_reference(driver: Driver, bad: float, where: str) -> None:
    call = make(replace(HALF, rows=(40, 3), lengths=(170, 90), page=48, heads=2, kv_heads=1))
    if where == "query":
        call.query[7, 1, 11] = bad
    else:
        cache = call.key_cache if where == "key" else call.value_cache
        block, offset = token_place(call, 0, 150)  # rows 0 to 19 of the 40 come before it
        cache[block, 0, offset, 11] = bad
    out, expected = launch(driver(128), call), paged_prefill_reference(call, torch.float32)
    assert not expected.isfinite().all()
    torch.testing.assert_close(out.float(), expected.float(), atol=2e-3, rtol=1e-2, equal_nan=True)


@pytest.mark.parametrize("tile", TILES)
def test_the_order_of_threads_does_not_change_a_bit(driver: Driver, tile: int) -> None:
    outputs = [launch(driver(tile), make(SMALL), tile, seed) for seed in range(4)]
    assert all(torch.equal(a, b) for a, b in pairwise(outputs))


def test_emulation_shows_a_missing_barrier(tmp_path: Path) -> None:
    source = (KERNELS / "cuda" / "paged_prefill.cu").read_text()
    after_keys = "    put(staged, s.cache);\n    __syncthreads();\n"
    assert source.count(after_keys) == 2
    (tmp_path / "paged_prefill.cu").write_text(source.replace(after_keys, "    put(staged, s.cache);\n", 1))
    for header in (KERNELS / "cuda").glob("*.cuh"):
        (tmp_path / header.name).write_text(header.read_text())
    broken = tmp_path / "driver.cpp"
    driver_source = (KERNELS / "emulation" / "driver.cpp").read_text()
    broken.write_text(driver_source.replace("../cuda/paged_prefill.cu", "paged_prefill.cu"))
    library = emulated_driver(tmp_path, 128, broken)
    first, second = (launch(library, make(SMALL), seed=seed) for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("limit_kib", "tile"), [(48, 32), (64, 64), (96, 128), (99, 128), (227, 128)])
def test_a_small_limit_of_shared_memory_takes_a_smaller_tile(driver: Driver, limit_kib: int, tile: int) -> None:
    assert choose_tile(limit_kib << 10) == tile
    driver(tile).emulation_set_device_shared_limit(limit_kib << 10)
    batch = SMALL.with_page(1056)
    assert_close(launch(driver(tile), make(batch), tile), paged_prefill_reference(make(batch), torch.float32))


def test_a_limit_below_the_smallest_tile_is_refused_at_start() -> None:
    with pytest.raises(KernelUnavailableError, match="37504 bytes of shared memory, this device allows 32768"):
        choose_tile(32 << 10)


def test_a_launch_beyond_the_limit_fails_with_the_drivers_words(driver: Driver) -> None:
    driver(128).emulation_set_device_shared_limit(64 << 10)
    with pytest.raises(KernelUnavailableError, match="the CUDA driver failed"):
        CudaKernel(driver(128), b"image", 128)
    driver(128).emulation_set_device_shared_limit(96 << 10)


def test_views_that_16_byte_loads_cannot_read_are_refused(driver: Driver) -> None:
    call = make(replace(HALF, rows=(4,), lengths=(40,), page=48, heads=2, kv_heads=1))
    padded = torch.zeros(len(call.key_cache), 1, 48, 260, dtype=torch.float16)
    for change, message in (
        ({"key_cache": make(replace(HALF, page=48, tokens_first=True)).key_cache}, "elements have stride 48"),
        ({"value_cache": padded[..., :256]}, "multiples of 8"),
        ({"query": torch.zeros(4, 2, 264, dtype=torch.float16)[..., 1:257]}, "multiple of 16 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            launch(driver(128), replace(call, **change))
