"""What qualifies for the page gate: one table of rules, each with the reason that a refusal is reported under."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

from paceline.kernels.arguments import HEAD_SIZE, SLOT_TOKENS


class GateMode(StrEnum):
    """Which layers the gate takes.

    `AnyPage` takes all that qualify, on the page that the model asks for; `Auto` does the same where that was measured
    to be no slower, and else leaves both to the engine.
    """

    AUTO = "Auto"
    ANY_PAGE = "AnyPage"
    DISABLED = "Disabled"


@dataclass(frozen=True)
class Layer:
    """What the gate must know of an attention layer; sizes in tokens and elements."""

    head_size: int
    page_size: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    device: str
    num_heads: int
    num_kv_heads: int
    decoder: bool = True
    causal: bool = True
    sliding_window: bool = False
    soft_cap: bool = False
    alibi: bool = False
    sinks: bool = False
    cache_layout: str = "plain"
    measured: bool = True


@dataclass(frozen=True)
class Rule:
    """One line of the table: `reason` is counted and shown, `refuses` tells whether a layer is refused for it."""

    reason: str
    refuses: Callable[[Layer], bool]
    meaning: str


MEASURED_LEVELS: Final = ("avx2", "avx512", "amx")
"""Levels of the CPU kernel that mode Auto trusts: chunks (AVX512) or whole requests (AVX2, AMX) were measured to be no
slower than the engine's own kernel; docs/kernels.md has the figures, and says what was not measured."""

DTYPES: Final = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.float16,)}

RULES: Final = (
    Rule("Device", lambda layer: layer.device not in DTYPES, "there is a kernel for CPU and for CUDA only"),
    Rule("HeadSize", lambda layer: layer.head_size != HEAD_SIZE, f"the kernel is for heads of {HEAD_SIZE} elements"),
    Rule(
        "Page",
        lambda layer: layer.page_size <= 0 or layer.page_size % SLOT_TOKENS != 0,
        f"a page must be a multiple of {SLOT_TOKENS} tokens",
    ),
    Rule(
        "Dtype",
        lambda layer: layer.dtype not in DTYPES.get(layer.device, ()),
        "float32, bfloat16 (CPU), float16 (CUDA)",
    ),
    Rule("CacheDtype", lambda layer: layer.cache_dtype != layer.dtype, "the cache must have the queries' own type"),
    Rule("CacheLayout", lambda layer: layer.cache_layout != "plain", "the engine packs this cache for its own kernel"),
    Rule(
        "HeadGroups", lambda layer: layer.num_heads % layer.num_kv_heads != 0, "query heads must share kv heads evenly"
    ),
    Rule("NotDecoder", lambda layer: not layer.decoder, "encoder and cross attention don't read a causal cache"),
    Rule("NotCausal", lambda layer: not layer.causal, "the kernel is causal"),
    Rule("SlidingWindow", lambda layer: layer.sliding_window, "the kernel attends to the whole context"),
    Rule("SoftCap", lambda layer: layer.soft_cap, "the kernel does not cap scores"),
    Rule("Alibi", lambda layer: layer.alibi, "the kernel adds no position bias"),
    Rule("Sinks", lambda layer: layer.sinks, "the kernel has no attention sinks"),
    Rule(
        "NotMeasured",
        lambda layer: not layer.measured,
        f"mode Auto takes a layer only where the kernel runs {', '.join(MEASURED_LEVELS)} code",
    ),
)


def refusals(layer: Layer) -> tuple[str, ...]:
    """Return every reason for which a layer does not qualify; empty when it does."""
    return tuple(rule.reason for rule in RULES if rule.refuses(layer))


def meaning(reason: str) -> str:
    """Return what a reason means, in words for a status message."""
    return next(rule.meaning for rule in RULES if rule.reason == reason)


def is_measured(mode: GateMode, levels: tuple[str, ...]) -> bool:
    """Tell whether a mode takes layers where these levels of the CPU kernel run, the fastest last."""
    return mode is not GateMode.AUTO or (bool(levels) and levels[-1] in MEASURED_LEVELS)
