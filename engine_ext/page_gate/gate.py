"""What the gate of this process was asked for, whether it can serve, and what it served."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from paceline.engine_ext.environment import StartError
from paceline.engine_ext.page_gate.counters import GateCounters
from paceline.kernels.arguments import SLOT_TOKENS
from paceline.kernels.dispatch import GateMode, Layer, keeps_model_page, meaning, refusals
from paceline.kernels.loader import KernelUnavailableError, cpu_kernels

PAGE_GATE: Final = "PACELINE_PAGE_GATE"
PLAIN_LAYOUTS: Final = ("vec", "vec16")
"""Names of vLLM's kernels whose cache is plain; both store the same bytes."""


def read_mode(environ: Mapping[str, str] = os.environ) -> GateMode:
    """Return the mode that the environment asks for, Disabled where it says nothing. Raises StartError."""
    text = environ.get(PAGE_GATE) or GateMode.DISABLED.value
    try:
        return GateMode(text)
    except ValueError as error:
        known = ", ".join(GateMode)
        raise StartError(f"{PAGE_GATE} is {text!r}: it must be one of {known}") from error


@dataclass
class PageGate:
    """The gate of one process. `unavailable` says why it serves nothing."""

    mode: GateMode = GateMode.DISABLED
    unavailable: str | None = None
    counters: GateCounters = field(default_factory=GateCounters)

    @property
    def active(self) -> bool:
        """Whether the gate takes what qualifies."""
        return self.mode is not GateMode.DISABLED and self.unavailable is None

    def load(self) -> None:
        """Load the kernels; where they can't be had, the gate says why and serves nothing."""
        try:
            cpu_kernels()
        except KernelUnavailableError as error:
            self.unavailable = str(error)

    def page_reason(self, vllm_config: Any) -> str | None:
        """Return why a model runs on the engine's page; None where it keeps the page that it asks for."""
        model, cache_config = vllm_config.model_config, vllm_config.cache_config
        if model is None or not model.is_hybrid:
            return "NotHybrid: only the page of hybrid models follows from the model"
        if cache_config.user_specified_block_size:
            return "BlockSizeGiven: the engine was started with a block size"
        layer = Layer(
            head_size=model.get_head_size(),
            page_size=SLOT_TOKENS,
            dtype=model.dtype,
            cache_dtype=model.dtype if cache_config.cache_dtype == "auto" else torch.uint8,
            device="cpu",
            num_heads=model.get_num_attention_heads(vllm_config.parallel_config),
            num_kv_heads=model.get_num_kv_heads(vllm_config.parallel_config),
            cache_layout=cache_layout(model.dtype, model.get_head_size()),
        )
        if refused := refusals(layer):
            return "; ".join(f"{reason}: {meaning(reason)}" for reason in refused)
        levels = cpu_kernels().levels(layer.dtype)
        if not keeps_model_page(self.mode, levels):
            return (
                f"NotMeasured: mode {self.mode} leaves the page to the engine where our kernel runs {levels[-1]} code"
            )
        return None

    def report(self, core: Any) -> dict[str, Any]:
        """Return the gate's state in an engine core, as the admin route answers it."""
        return {
            "mode": self.mode.value,
            "active": self.active,
            "reason": self.unavailable,
            "pageTokens": page_tokens(core.scheduler.kv_cache_config),
            "pageReason": self.page_reason(core.vllm_config) if self.active else None,
            **self.counters.as_dict(core.vllm_config.parallel_config.data_parallel_index),
        }


def cache_layout(dtype: torch.dtype, head_size: int) -> str:
    """Return how vLLM lays out the cache on this processor, for a page that is a multiple of 16 tokens alone."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # here, as below

    return layout_of(_get_attn_isa(dtype, SLOT_TOKENS, head_size))


def layout_of(isa: str) -> str:
    """Return the layout of the cache that one of vLLM's CPU kernels keeps: its name, or plain."""
    return "plain" if isa in PLAIN_LAYOUTS else isa


def page_tokens(kv_cache_config: Any) -> int:
    """Return the tokens in a page of the attention layers that keep every token; zero without such layers."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec  # here: vLLM loads plugins while it imports its core

    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return max((spec.block_size for spec in specs if isinstance(spec, FullAttentionSpec)), default=0)


GATE: Final = PageGate()
"""The gate of this process."""
