"""What the page gate leaves to vLLM's own attention: every reason, counted by the layer that meets it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from page_gate_steps import HEAD, HEADS, ROWS, Step, forward, implementation, make_step
from vllm.platforms import current_platform

from paceline.engine_ext.page_gate.backend import PageGateImpl
from paceline.engine_ext.page_gate.gate import GATE
from paceline.kernels.dispatch import RULES, meaning


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    current_platform.import_kernels()


def refused_since(before: dict[str, Any]) -> dict[str, int]:
    """Return how often each reason was counted since; no call may have been served."""
    after = GATE.counters.as_dict()
    assert after["served"] == before["served"]
    counts = {reason: count - before["refused"].get(reason, 0) for reason, count in after["refused"].items()}
    return {reason: count for reason, count in counts.items() if count}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sliding_window": 128}, "SlidingWindow"),
        ({"logits_soft_cap": 30.0}, "SoftCap"),
        ({"alibi_slopes": torch.zeros(HEADS)}, "Alibi"),
    ],
)
def test_what_is_refused_runs_on_vllms_kernel_and_is_counted(changes: dict[str, Any], reason: str) -> None:
    step = make_step(800, torch.float32, "vec")
    step.cache.nan_to_num_(0.0)
    before = GATE.counters.as_dict()
    ours = forward(implementation(**changes), step, "vec")
    assert ours.isfinite().all()
    assert refused_since(before) == {reason: 1}


def not_causal(step: Step) -> Step:
    return replace(step, metadata=replace(step.metadata, causal=False))


def causal_by_row(step: Step) -> Step:
    return replace(step, metadata=replace(step.metadata, dynamic_causal=torch.ones(len(ROWS), dtype=torch.bool)))


Change = Callable[[Step], Step]
LEFT_TO_THE_ENGINE: dict[str, tuple[dict[str, Any], Change, str, set[str]]] = {
    "cross attention": ({"attn_type": "encoder_decoder"}, not_causal, "vec", {"NotDecoder", "NotCausal"}),
    "encoder": ({"attn_type": "encoder_only"}, not_causal, "vec", {"NotDecoder", "NotCausal"}),
    "sinks": ({"sinks": torch.zeros(HEADS)}, lambda s: s, "vec", {"Sinks"}),
    "head size 128": ({"head_size": 128}, lambda s: s, "vec", {"HeadSize"}),
    "cache packed for AMX": ({}, lambda s: s, "amx", {"CacheLayout"}),
    "cache packed for ARM": ({}, lambda s: s, "neon", {"CacheLayout"}),
    "seven heads on two": ({"num_heads": 7, "num_kv_heads": 2}, lambda s: s, "vec", {"HeadGroups"}),
    "page 24": ({}, lambda s: replace(s, cache=s.cache[:, :, :24]), "vec", {"Page"}),
    "a cache of three dimensions": ({}, lambda s: replace(s, cache=s.cache[:, 0]), "vec", {"Page"}),
    "half": ({}, lambda s: replace(s, query=s.query.half(), cache=s.cache.half()), "vec", {"Dtype"}),
    "quantized cache": ({}, lambda s: replace(s, cache=s.cache.to(torch.float8_e4m3fn)), "vec", {"CacheDtype"}),
    "another device": (
        {},
        lambda s: replace(s, query=s.query.to("meta"), cache=s.cache.to("meta")),
        "vec",
        {"Device", "Dtype"},
    ),
    "not causal": ({}, not_causal, "vec", {"NotCausal"}),
    "causal for some": ({}, causal_by_row, "vec", {"NotCausal"}),
    "two reasons": (
        {"sliding_window": 128, "sinks": torch.zeros(HEADS)},
        lambda s: s,
        "vec",
        {"SlidingWindow", "Sinks"},
    ),
}


@pytest.mark.parametrize(
    ("changes", "change", "isa", "reasons"), LEFT_TO_THE_ENGINE.values(), ids=LEFT_TO_THE_ENGINE.keys()
)
def test_every_reason_leaves_the_call_to_the_engine_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], change: Change, isa: str, reasons: set[str]
) -> None:
    step, impl = change(make_step(800, torch.float32, "vec")), implementation(**changes)
    left: list[tuple[Any, ...]] = []
    # vLLM's kernel computes few of these on a CPU; that the call reaches it, whole, is what is asked here.
    monkeypatch.setattr(PageGateImpl, "_stock", lambda _, *arguments: left.append(arguments))
    before = GATE.counters.as_dict()
    for _ in range(2):
        forward(impl, step, isa)
    assert refused_since(before) == dict.fromkeys(reasons, 2)
    assert [(call[1] is step.query, call[4] is step.cache, call[5] is step.metadata) for call in left] == [
        (True, True, True)
    ] * 2
    assert all(meaning(reason) for reason in reasons)


def test_every_rule_has_its_case() -> None:
    shown = {reason for *_, reasons in LEFT_TO_THE_ENGINE.values() for reason in reasons}
    elsewhere = {"SoftCap", "Alibi", "NotMeasured"}  # above, and in test_page_gate.py
    assert shown | elsewhere == {rule.reason for rule in RULES}


def test_a_step_that_is_not_causal_does_not_refuse_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    step, impl = make_step(784, torch.float32, "vec16"), implementation()
    monkeypatch.setattr(PageGateImpl, "_stock", lambda *_: None)
    before = GATE.counters.as_dict()
    forward(impl, not_causal(step), "vec16")
    assert refused_since(before) == {"NotCausal": 1}
    out = forward(impl, step, "vec16")
    assert out.isfinite().all()
    assert out.shape == (sum(ROWS), HEADS, HEAD)
    assert GATE.counters.as_dict()["served"] == before["served"] + 1
