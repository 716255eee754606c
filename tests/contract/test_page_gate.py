"""The page gate against vLLM's own CPU attention: the same cache, filled by vLLM, and the same step."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from page_gate_steps import HEAD, HEADS, KV_HEADS, ROWS, forward, implementation, layer, make_step
from vllm import _custom_ops as ops
from vllm.platforms import current_platform
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec

from paceline.engine_ext.environment import StartError
from paceline.engine_ext.page_gate.backend import PageGateBackend, PageGateImpl, attend
from paceline.engine_ext.page_gate.counters import FOLDER, GateCounters
from paceline.engine_ext.page_gate.gate import GATE, PageGate, read_mode
from paceline.engine_ext.page_gate.patches import _wrap
from paceline.kernels.dispatch import GateMode, is_measured
from paceline.kernels.loader import LEVEL_VARIABLE, cpu_kernels


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    current_platform.import_kernels()


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
        ({"cache_dtype": "bfloat16", "dtype": torch.bfloat16}, 16),
        ({"cache_dtype": "bfloat16", "dtype": torch.float32}, 128),
        ({"dtype": torch.float16}, 128),
        ({"user_specified": True, "block_size": 512}, 512),
        ({"is_hybrid": False}, 128),
    ],
)
def test_where_the_page_starts_from(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], start: int) -> None:
    monkeypatch.setattr(GATE, "mode", GateMode.ANY_PAGE)
    monkeypatch.setattr(GATE, "any_page", False)
    # As on a processor without AMX: whether vLLM packs this cache is asked in a test of its own.
    monkeypatch.setattr(cpu_attn, "_get_attn_isa", lambda *_: "vec16")
    seen = []
    config = hybrid_config(**changes)
    _wrap(lambda _, given: seen.append(given.cache_config.block_size))(None, config)
    assert seen == [start]


@pytest.mark.parametrize(
    ("mode", "levels", "taken"),
    [
        (GateMode.AUTO, (), False),
        (GateMode.AUTO, ("portable",), False),
        (GateMode.AUTO, ("portable", "avx2"), True),
        (GateMode.AUTO, ("portable", "avx2", "avx512"), True),
        (GateMode.AUTO, ("portable", "avx2", "avx512", "amx"), True),
        (GateMode.ANY_PAGE, ("portable",), True),
    ],
)
def test_where_a_mode_takes_layers(mode: GateMode, levels: tuple[str, ...], taken: bool) -> None:
    assert is_measured(mode, levels) is taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_leaves_everything_to_the_engine_where_only_portable_code_runs(
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
    step, before = make_step(800, dtype, "vec"), GATE.counters.as_dict()
    step.cache.nan_to_num_(0.0)
    monkeypatch.setattr(GATE, "mode", GateMode.AUTO)
    assert forward(implementation(), step, "vec").isfinite().all()
    after = GATE.counters.as_dict()
    assert after["served"] == before["served"]
    assert after["refused"]["NotMeasured"] == before["refused"].get("NotMeasured", 0) + 1


@pytest.mark.parametrize(
    ("gate", "changes", "refused", "message"),
    [
        (PageGate(), {}, (), None),
        (PageGate(GateMode.AUTO, unavailable="no library"), {}, (), "Auto: off, no library"),
        (PageGate(GateMode.ANY_PAGE), {}, (), "AnyPage: pages of 784 tokens, as the model asks for"),
        (
            PageGate(GateMode.ANY_PAGE),
            {},
            ("SoftCap", "Dtype"),
            "AnyPage: pages of 784 tokens, as the model asks for; calls left to the engine: Dtype, SoftCap",
        ),
        (
            PageGate(GateMode.ANY_PAGE),
            {"is_hybrid": False},
            (),
            "AnyPage: pages of 784 tokens, the engine's own "
            "(NotHybrid: only the page of hybrid models follows from the model)",
        ),
    ],
    ids=["disabled", "unavailable", "served", "refused calls", "the engine's page"],
)
def test_what_the_gate_does_in_a_line(
    monkeypatch: pytest.MonkeyPatch, gate: PageGate, changes: dict[str, Any], refused: tuple[str, ...], message: str
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(cpu_attn, "_get_attn_isa", lambda *_: "vec16")
    gate.counters.refuse(refused)
    assert gate.report(core(hybrid_config(**changes)))["message"] == message


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


@pytest.mark.parametrize(
    ("changes", "multiple"),
    [({}, 16), ({"user_specified": True}, 16), ({"is_hybrid": False}, 16), ({"head_size": 128}, 32)],
)
def test_pages_may_be_any_multiple_of_16_where_the_layers_are_taken(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], multiple: int
) -> None:
    monkeypatch.setattr(GATE, "mode", GateMode.ANY_PAGE)
    monkeypatch.setattr(GATE, "any_page", multiple != 16)
    _wrap(lambda *_: None)(None, hybrid_config(**changes))
    pages = {page: PageGateBackend.supports_block_size(page) for page in (16, 24, 32, 528, 784, 800, 896, 1056)}
    assert pages == {page: page % multiple == 0 for page in pages}
    assert PageGateBackend.get_name() == "CPU_ATTN"


def test_a_start_without_a_model_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GATE, "mode", GateMode.ANY_PAGE)
    monkeypatch.setattr(GATE, "any_page", False)
    config = SimpleNamespace(model_config=None, cache_config=SimpleNamespace(block_size=128))
    _wrap(lambda *_: None)(None, config)
    assert (config.cache_config.block_size, GATE.any_page) == (128, False)


def test_a_wrong_mode_ends_the_start_with_the_right_ones() -> None:
    assert read_mode({}) is GateMode.DISABLED
    assert read_mode({"PACELINE_PAGE_GATE": "AnyPage"}) is GateMode.ANY_PAGE
    with pytest.raises(StartError, match="'Any': it must be one of Auto, AnyPage, Disabled"):
        read_mode({"PACELINE_PAGE_GATE": "Any"})


def test_vllms_own_convolution_refuses_a_step_of_one_row() -> None:
    if not torch.cpu._is_avx512_bf16_supported():
        return  # vLLM computes it with torch there
    projected = torch.zeros(1, 4_096, dtype=torch.bfloat16)[:, :2_560]
    transposed = projected.contiguous().transpose(0, 1)
    with pytest.raises(RuntimeError, match="expect x to be transposed"):
        ops.causal_conv1d_fwd_cpu(
            x=transposed,
            weight=torch.zeros(2_560, 4, dtype=torch.bfloat16),
            bias=None,
            conv_states=torch.zeros(2, 3, 2_560, dtype=torch.bfloat16).transpose(1, 2),
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
            cache_indices=torch.tensor([1], dtype=torch.int32),
            has_initial_state=torch.tensor([False]),
            silu_activation=True,
            is_weight_packed=False,
        )
