"""What the operator refuses, and that it does so before anything is launched."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from batches import Batch, assert_close, make

from paceline.kernels import ops
from paceline.kernels.arguments import PagedPrefill, PageIndexError
from paceline.kernels.ops import paged_prefill
from paceline.kernels.reference import paged_prefill_reference


def operate(call: PagedPrefill) -> None:
    paged_prefill(**vars(call))


def untouched() -> PagedPrefill:
    call = make(Batch(rows=[5, 40], lengths=[70, 90], page=48, heads=6, kv_heads=1))
    call.out.fill_(7.0)
    return call


def narrow(call: PagedPrefill) -> PagedPrefill:
    names = ("query", "key_cache", "value_cache", "out")
    return replace(call, **{name: getattr(call, name)[..., :128] for name in names})


def as_dtype(call: PagedPrefill, dtype: torch.dtype) -> PagedPrefill:
    names = ("query", "key_cache", "value_cache", "out")
    return replace(call, **{name: getattr(call, name).to(dtype) for name in names})


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def caches(call: PagedPrefill, change: Callable[[torch.Tensor], torch.Tensor]) -> PagedPrefill:
    return replace(call, key_cache=change(call.key_cache), value_cache=change(call.value_cache))


CASES: dict[str, tuple[Callable[[PagedPrefill], PagedPrefill], str]] = {
    "scale": (lambda c: replace(c, scale=0.0), "scale 0.0"),
    "page 24": (lambda c: caches(c, lambda t: t[:, :, :24]), "page 24"),
    "head size 128": (narrow, "head size 128"),
    "half": (lambda c: replace(c, query=c.query.half()), "float16"),
    "mixed dtypes": (lambda c: replace(c, key_cache=c.key_cache.bfloat16()), "key_cache has dtype"),
    "long table": (lambda c: replace(c, block_table=c.block_table.long()), "block_table has dtype"),
    "heads": (lambda c: caches(c, lambda t: t.expand(-1, 4, -1, -1)), "share"),
    "no heads": (lambda c: replace(c, query=c.query[:, :0], out=c.out[:, :0]), "0 heads don't share"),
    "queries beyond the length": (lambda c: replace(c, seq_lens=int32(4, 90)), "length of 4"),
    "length beyond the pages": (lambda c: replace(c, seq_lens=int32(70, 97)), "97 tokens"),
    "starts beyond the queries": (lambda c: replace(c, query=c.query[:44], out=c.out[:44]), "ends at 45"),
    "falling starts": (lambda c: replace(c, query_start=int32(0, 45, 5), seq_lens=int32(90, 90)), "falls"),
    "elements of keys contiguous": (lambda c: replace(c, key_cache=c.key_cache.contiguous()), "key_cache's tokens"),
    "values strided": (
        lambda c: replace(c, value_cache=c.value_cache.repeat_interleave(2, 3)[..., ::2]),
        "value_cache's elements",
    ),
}


@pytest.mark.parametrize(("change", "message"), CASES.values(), ids=CASES.keys())
def test_refused_before_anything_is_written(change: Callable[[PagedPrefill], PagedPrefill], message: str) -> None:
    call = change(untouched())
    with pytest.raises((ValueError, TypeError), match=message):
        operate(call)
    assert (call.out == 7.0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c, "query has dtype torch.float32: this device's kernel takes torch.float16"),
        (lambda c: as_dtype(c, torch.bfloat16), "query has dtype torch.bfloat16"),
        (lambda c: replace(as_dtype(c, torch.float16), out=c.out), "out has dtype torch.float32"),
        (lambda c: caches(as_dtype(c, torch.float16), lambda t: t[:, :, :24]), "page 24"),
        (lambda c: narrow(as_dtype(c, torch.float16)), "head size 128"),
        (lambda c: replace(as_dtype(c, torch.float16), seq_lens=c.seq_lens.long()), "seq_lens has dtype"),
    ],
)
def test_the_gpus_side_refuses_before_it_asks_for_a_gpu(
    change: Callable[[PagedPrefill], PagedPrefill], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ops._on_cuda(*vars(change(untouched())).values())


@pytest.mark.parametrize("block", [-1, 10_000])
def test_debug_mode_of_the_gpus_side_names_a_block_outside_the_cache(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_DEBUG", "1")
    call = as_dtype(untouched(), torch.float16)
    call.block_table[1, 1] = block
    with pytest.raises(PageIndexError, match=f"sequence 1, page 1: block {block} is outside"):
        ops._on_cuda(*vars(call).values())


@pytest.mark.parametrize("block", [-1, 10_000])
def test_debug_mode_names_a_block_outside_the_cache(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_DEBUG", "1")
    call = untouched()
    call.block_table[1, 1] = block
    with pytest.raises(PageIndexError, match=f"sequence 1, page 1: block {block} is outside"):
        operate(call)
    assert (call.out == 7.0).all()


def test_debug_mode_passes_what_is_right_and_unused_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_DEBUG", "1")
    call = make(Batch(rows=[5, 40], lengths=[30, 90], page=48, heads=6, kv_heads=1))
    call.block_table[0, 1] = -1  # beyond the first sequence's only page
    operate(call)
    assert_close(call.out, paged_prefill_reference(call))


def test_debug_mode_passes_over_a_sequence_without_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_DEBUG", "1")
    call = make(Batch(rows=[0, 40], lengths=[30, 90], page=48, heads=6, kv_heads=1))
    call.block_table[0] = -1
    operate(call)
    assert_close(call.out, paged_prefill_reference(replace(call, block_table=call.block_table.clamp(min=0))))


def test_operator_passes_torchs_own_checks() -> None:
    call = make(Batch(rows=[5, 40], lengths=[70, 90], page=48, heads=6, kv_heads=1))
    torch.library.opcheck(torch.ops.paceline.paged_prefill.default, tuple(vars(call).values()))


def test_fake_tensors_are_checked_too() -> None:
    call = untouched()
    meta = {name: value.to("meta") for name, value in vars(call).items() if name != "scale"}
    paged_prefill(**meta, scale=call.scale)
    caches_of_24 = {name: meta[name][:, :, :24] for name in ("key_cache", "value_cache")}
    with pytest.raises(ValueError, match="page 24"):
        paged_prefill(**{**meta, **caches_of_24}, scale=call.scale)


@pytest.mark.parametrize("device", ["CPU", "CUDA", "Meta"])
def test_operator_has_a_kernel_for_every_device(device: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key("paceline::paged_prefill", device)
