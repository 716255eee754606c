"""What the page gate replaces in vLLM, all in one place. `compat.HOOKS` says on which sources each was tested."""

from functools import cache
from typing import Any

from vllm.logger import init_logger
from vllm.platforms import current_platform

from paceline.engine_ext import compat
from paceline.engine_ext.page_gate.counters import share_counters
from paceline.engine_ext.page_gate.gate import GATE, read_mode
from paceline.kernels.arguments import SLOT_TOKENS
from paceline.kernels.dispatch import GateMode

logger = init_logger("vllm.paceline")

BACKEND = "paceline.engine_ext.page_gate.backend.PageGateBackend"


@cache
def install() -> None:
    """Put the gate before vLLM's CPU attention, if the environment asks for it; doing so again changes nothing.

    Where it can't serve, nothing is replaced, the log and the admin route say why, and the engine runs as ever.
    """
    GATE.mode = read_mode()
    if GATE.mode is GateMode.DISABLED:
        return
    GATE.unavailable = _obstacle()
    if GATE.unavailable is None:
        GATE.load()
    if GATE.unavailable is not None:
        logger.warning("paceline: the page gate serves nothing: %s", GATE.unavailable)
        return
    share_counters()
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
    CpuPlatform.update_block_size_for_backend = classmethod(_wrap(CpuPlatform.update_block_size_for_backend.__func__))


def _obstacle() -> str | None:
    if not current_platform.is_cpu():
        return "on this platform the engine keeps its own attention: docs/decisions/2026-11-29-page-gate-selection.md"
    return "; ".join(compat.problems("page_gate")) or None


def _wrap(original: Any) -> Any:
    """Return `update_block_size_for_backend` that starts from the smallest page, where the gate keeps the model's."""

    def update_block_size_for_backend(cls: Any, vllm_config: Any) -> None:
        if vllm_config.model_config is not None:
            GATE.any_page = GATE.layer_reason(vllm_config) is None
        reason = GATE.page_reason(vllm_config)
        if reason is None:
            vllm_config.cache_config.block_size = SLOT_TOKENS
        original(cls, vllm_config)
        page, why = vllm_config.cache_config.block_size, reason or "the page that the model asks for"
        logger.info("paceline: page gate %s, pages of %s tokens (%s)", GATE.mode, page, why)

    return update_block_size_for_backend
