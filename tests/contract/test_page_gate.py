"""The page gate against vLLM's own CPU attention: the same cache, filled by vLLM, and the same step."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec

from paceline.engine_ext.environment import StartError
from paceline.engine_ext.page_gate.backend import PageGateBackend, PageGateImpl, attend
from paceline.engine_ext.page_gate.counters import FOLDER, GateCounters
from paceline.engine_ext.page_gate.gate import GATE, PageGate, read_mode
from paceline.engine_ext.page_gate.patches import _wrap
from paceline.kernels.dispatch import GateMode, keeps_model_page, meaning, refusals
from paceline.kernels.loader import LEVEL_VARIABLE, cpu_kernels

HEADS, KV_HEADS, HEAD = 6, 1, 256
ROWS, LENGTHS = (1, 1, 40, 300), (1500, 17, 900, 300)
"""Two decoding requests beside two prefilling ones."""


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    current_platform.import_kernels()


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("page", "isa"), [(784, "vec16"), (816, "vec16"), (800, "vec"), (896, "vec")])
def test_reads_what_vllm_wrote_and_gives_what_vllm_gives(page: int, isa: str, dtype: torch.dtype) -> None:
    step = make_step(page, dtype, isa)
    served = GATE.counters.as_dict()["servedRows"]
    ours = forward(implementation(), step, isa)
    assert GATE.counters.as_dict()["servedRows"] - served == sum(ROWS)
    step.cache.nan_to_num_(0.0)  # vLLM's own kernel multiplies zero weights with what masked slots hold
    theirs = torch.empty_like(ours)
    super(PageGateImpl, implementation()).forward(
        layer(isa), step.query, step.query, step.query, step.cache, step.metadata, theirs
    )
    torch.testing.assert_close(ours.float(), theirs.float(), atol=4e-3, rtol=1e-2)


@pytest.mark.parametrize(
    ("changes", "isa", "reason"),
    [
        ({"sliding_window": 128}, "vec", "SlidingWindow"),
        ({"logits_soft_cap": 30.0}, "vec", "SoftCap"),
        ({"alibi_slopes": torch.zeros(HEADS)}, "vec", "Alibi"),
    ],
)
def test_what_is_refused_runs_on_vllms_kernel_and_is_counted(changes: dict[str, Any], isa: str, reason: str) -> None:
    step = make_step(800, torch.float32, isa)
    step.cache.nan_to_num_(0.0)
    before = GATE.counters.as_dict()
    ours = forward(implementation(**changes), step, isa)
    assert ours.isfinite().all()
    after = GATE.counters.as_dict()
    assert after["refused"][reason] == before["refused"].get(reason, 0) + 1
    assert after["served"] == before["served"]


@pytest.mark.parametrize(
    ("changes", "isa", "reason"),
    [
        ({"attn_type": "encoder_decoder"}, "vec", "NotDecoder"),
        ({"sinks": torch.zeros(HEADS)}, "vec", "Sinks"),
        ({"head_size": 128}, "vec", "HeadSize"),
        ({}, "amx", "CacheLayout"),
    ],
)
def test_why_a_layer_is_refused(changes: dict[str, Any], isa: str, reason: str) -> None:
    step = make_step(800, torch.float32, "vec")
    described = implementation(**changes)._describe(layer(isa), step.query, step.cache)
    assert refusals(described) == (reason,)
    assert meaning(reason)


@pytest.mark.parametrize("shape", [(4, 2, 24, 512), (4, 2, 512)])
def test_a_cache_without_pages_of_16_is_refused(shape: tuple[int, ...]) -> None:
    step = make_step(800, torch.float32, "vec")
    described = implementation()._describe(layer("vec"), step.query, torch.zeros(shape))
    assert refusals(described) == ("Page",)


def test_a_length_beyond_the_table_is_named_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_DEBUG", "1")
    step = make_step(784, torch.float32, "vec16")
    step.metadata.seq_lens[0] = 784 * step.metadata.block_table.shape[1] + 1
    with pytest.raises(ValueError, match=r"sequence 0 has .* tokens, its pages hold"):
        attend(step.query, step.cache, step.metadata, torch.empty_like(step.query), HEAD**-0.5)


def test_a_block_outside_the_cache_is_named_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_DEBUG", "1")
    step = make_step(784, torch.float32, "vec16")
    step.metadata.block_table[3, 0] = 99
    with pytest.raises(IndexError, match="sequence 3, page 0: block 99"):
        attend(step.query, step.cache, step.metadata, torch.empty_like(step.query), HEAD**-0.5)


def hybrid_config(
    *,
    is_hybrid: bool = True,
    dtype: torch.dtype = torch.float32,
    head_size: int = 256,
    block_size: int = 128,
    user_specified: bool = False,
    cache_dtype: str = "auto",
) -> Any:
    model = SimpleNamespace(
        is_hybrid=is_hybrid,
        dtype=dtype,
        get_head_size=lambda: head_size,
        get_num_attention_heads=lambda _: HEADS,
        get_num_kv_heads=lambda _: KV_HEADS,
    )
    parallel = SimpleNamespace(data_parallel_index=0)
    cache = SimpleNamespace(block_size=block_size, user_specified_block_size=user_specified, cache_dtype=cache_dtype)
    return SimpleNamespace(model_config=model, cache_config=cache, parallel_config=parallel)


def core(config: Any) -> Any:
    """Return an engine core with two groups of layers, as a hybrid model has them."""
    shape = {"block_size": 784, "page_size_padded": None}
    states = MambaSpec(shapes=((4, 4),), dtypes=(torch.float32,), **shape)
    attention = FullAttentionSpec(num_kv_heads=KV_HEADS, head_size=HEAD, dtype=torch.bfloat16, **shape)
    groups = [KVCacheGroupSpec([name], spec) for name, spec in (("states", states), ("attention", attention))]
    return SimpleNamespace(vllm_config=config, scheduler=SimpleNamespace(kv_cache_config=KVCacheConfig(8, [], groups)))


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({}, 16),
        ({"head_size": 128}, 128),
        ({"cache_dtype": "fp8"}, 128),
        ({"dtype": torch.float16}, 128),
        ({"user_specified": True, "block_size": 512}, 512),
        ({"is_hybrid": False}, 128),
    ],
)
def test_where_the_page_starts_from(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], start: int) -> None:
    monkeypatch.setattr(GATE, "mode", GateMode.ANY_PAGE)
    seen = []
    config = hybrid_config(**changes)
    _wrap(lambda _, given: seen.append(given.cache_config.block_size))(None, config)
    assert seen == [start]


@pytest.mark.parametrize(
    ("mode", "levels", "kept"),
    [
        (GateMode.AUTO, ("portable",), False),
        (GateMode.AUTO, ("portable", "avx2"), True),
        (GateMode.AUTO, ("portable", "avx2", "avx512"), True),
        (GateMode.AUTO, ("portable", "avx2", "avx512", "amx"), True),
        (GateMode.ANY_PAGE, ("portable",), True),
        (GateMode.DISABLED, ("portable", "avx2"), False),
    ],
)
def test_which_page_a_mode_takes(mode: GateMode, levels: tuple[str, ...], kept: bool) -> None:
    assert keeps_model_page(mode, levels) is kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_leaves_the_page_to_the_engine_where_only_portable_code_runs(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, dtype: torch.dtype
) -> None:
    request.addfinalizer(cpu_kernels.cache_clear)
    monkeypatch.setenv(LEVEL_VARIABLE, "portable")
    cpu_kernels.cache_clear()
    reasons = {
        mode: PageGate(mode=mode).report(core(hybrid_config(dtype=dtype)))["pageReason"]
        for mode in (GateMode.AUTO, GateMode.ANY_PAGE)
    }
    assert reasons[GateMode.ANY_PAGE] is None
    assert str(reasons[GateMode.AUTO]).startswith("NotMeasured: ")


def test_the_page_reported_is_that_of_the_attention_layers() -> None:
    config = hybrid_config(block_size=128)  # an engine core's own figure may be older than what its workers settled on
    assert PageGate().report(core(config))["pageTokens"] == 784


def test_counters_of_all_processes_of_a_rank_are_added_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    counters = GateCounters()
    counters.rank = 1
    counters.serve(40)
    counters.refuse(("Sinks", "Alibi"))
    for another in ("1-1", "0-1"):
        (tmp_path / another).write_bytes((tmp_path / f"1-{os.getpid()}").read_bytes())
    assert counters.as_dict(1) == {"served": 2, "servedRows": 80, "refused": {"Alibi": 2, "Sinks": 2}}
    assert counters.as_dict(0) == {"served": 1, "servedRows": 40, "refused": {"Alibi": 1, "Sinks": 1}}
    assert counters.as_dict(2) == {"served": 0, "servedRows": 0, "refused": {}}


def test_where_the_engine_packs_its_cache_the_page_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attn, "_get_attn_isa", lambda *_: "neon")  # what vLLM answers on every ARM processor
    reason = PageGate(mode=GateMode.ANY_PAGE).page_reason(hybrid_config())
    assert reason == "CacheLayout: the engine packs this cache for its own kernel"


def test_pages_may_be_any_multiple_of_16() -> None:
    assert all(PageGateBackend.supports_block_size(page) for page in (16, 528, 784, 800, 1056))
    assert not PageGateBackend.supports_block_size(24)
    assert PageGateBackend.get_name() == "CPU_ATTN"


def test_a_wrong_mode_ends_the_start_with_the_right_ones() -> None:
    assert read_mode({}) is GateMode.DISABLED
    assert read_mode({"PACELINE_PAGE_GATE": "AnyPage"}) is GateMode.ANY_PAGE
    with pytest.raises(StartError, match="'Any': it must be one of Auto, AnyPage, Disabled"):
        read_mode({"PACELINE_PAGE_GATE": "Any"})
