"""What the gate of this process was asked for, whether it can serve, and what it served."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from paceline.engine_ext.environment import StartError
from paceline.engine_ext.page_gate.counters import GateCounters
from paceline.kernels.arguments import SLOT_TOKENS
from paceline.kernels.dispatch import GateMode, Layer, is_measured, meaning, refusals
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
    """The gate of one process. `unavailable` says why it serves nothing.

    `any_page` tells whether pages may be any multiple of 16 tokens: the gate takes the model's layers on all of them.
    """

    mode: GateMode = GateMode.DISABLED
    unavailable: str | None = None
    any_page: bool = False
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
        return self.layer_reason(vllm_config)

    def layer_reason(self, vllm_config: Any) -> str | None:
        """Return why the gate leaves a model's attention to the engine on every page; None where it takes it."""
        from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE  # here, as below

        model, cached_as = vllm_config.model_config, vllm_config.cache_config.cache_dtype
        layer = Layer(
            head_size=model.get_head_size(),
            page_size=SLOT_TOKENS,
            dtype=model.dtype,
            cache_dtype=model.dtype if cached_as == "auto" else STR_DTYPE_TO_TORCH_DTYPE.get(cached_as, torch.uint8),
            device="cpu",
            num_heads=model.get_num_attention_heads(vllm_config.parallel_config),
            num_kv_heads=model.get_num_kv_heads(vllm_config.parallel_config),
            cache_layout=cache_layout(model.dtype, model.get_head_size()),
            measured=self.is_measured(model.dtype),
        )
        return "; ".join(f"{reason}: {meaning(reason)}" for reason in refusals(layer)) or None

    def is_measured(self, dtype: torch.dtype) -> bool:
        """Tell whether the mode trusts the code that runs here for a dtype."""
        return is_measured(self.mode, cpu_kernels().levels(dtype))

    def report(self, core: Any) -> dict[str, Any]:
        """Return the gate's state in an engine core, as the admin route answers it; `message` says it in a line."""
        tokens = page_tokens(core.scheduler.kv_cache_config)
        page_reason = self.page_reason(core.vllm_config) if self.active else None
        counted = self.counters.as_dict(core.vllm_config.parallel_config.data_parallel_index)
        return {
            "mode": self.mode.value,
            "active": self.active,
            "reason": self.unavailable,
            "pageTokens": tokens,
            "pageReason": page_reason,
            "message": self._message(tokens, page_reason, list(counted["refused"])),
            **counted,
        }

    def _message(self, tokens: int, page_reason: str | None, refused: list[str]) -> str | None:
        """Return what the gate does in a line without counts, for a status that should not change all the time."""
        if self.mode is GateMode.DISABLED:
            return None
        if self.unavailable is not None:
            return f"{self.mode}: off, {self.unavailable}"
        whose = f"the engine's own ({page_reason})" if page_reason else "as the model asks for"
        left = f"; calls left to the engine: {', '.join(refused)}" if refused else ""
        return f"{self.mode}: pages of {tokens} tokens, {whose}{left}"


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
