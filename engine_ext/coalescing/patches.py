"""What coalescing replaces in vLLM, all in one place. `compat.HOOKS` says on which sources each was tested."""

import importlib
from dataclasses import replace
from functools import cache
from typing import Any

from vllm.logger import init_logger
from vllm.platforms import current_platform

from paceline.engine_ext import compat

logger = init_logger("vllm.paceline")


@cache
def install() -> None:
    """Put coalescing's parts into this process, before vLLM builds anything; doing so again changes nothing.

    On an engine whose sources were not tested nothing is replaced, and the scheduler says why it plans no spans.
    """
    if problems := compat.problems("coalescing"):
        logger.warning("paceline: final chunks are not coalesced: %s", "; ".join(problems))
        return
    _install_caches()
    _install_worker()


def _install_caches() -> None:
    from vllm.v1 import kv_cache_spec_registry as registry
    from vllm.v1.core import kv_cache_coordinator, single_type_kv_cache_manager
    from vllm.v1.kv_cache_interface import MambaSpec

    from paceline.engine_ext.coalescing.manager import CoalescingMambaManager
    from paceline.engine_ext.coalescing.spare import SparePool

    single_type_kv_cache_manager.MambaManager = CoalescingMambaManager
    kv_cache_coordinator.BlockPool = SparePool
    known = registry._REGISTRY_KVCACHESPEC_LIST.get(MambaSpec)
    if known is not None:
        registry._REGISTRY_KVCACHESPEC_LIST[MambaSpec] = replace(known, manager_class=CoalescingMambaManager)


def _install_worker() -> None:
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
    from vllm.v1.worker.gpu_worker import Worker

    from paceline.engine_ext.coalescing import worker
    from paceline.engine_ext.coalescing.scheduler import PLAN_ATTRIBUTE

    Worker.execute_model = worker.wrap_execute_model(Worker.execute_model, PLAN_ATTRIBUTE)
    builder = GDNAttentionMetadataBuilder
    builder.build = worker.wrap_build(builder.build)
    builder.update_block_table = worker.wrap_update_block_table(builder.update_block_table)
    if current_platform.is_cpu():
        _install_cpu()
    else:
        _install_gpu()


def _install_cpu() -> None:
    from paceline.engine_ext.coalescing import forward_cpu

    cpu: Any = importlib.import_module("vllm.model_executor.layers.mamba.ops.cpu.gdn_attention")
    cpu.ops = forward_cpu.CuttingOps(cpu.ops)
    cpu._cpu_gdn_attention_nonspec = forward_cpu.wrap_attention(
        cpu._cpu_gdn_attention_nonspec, cpu.is_conv_state_dim_first
    )


def _install_gpu() -> None:
    from paceline.engine_ext.coalescing import forward_gpu

    layer: Any = importlib.import_module("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn")
    rule, attention = layer.ChunkGatedDeltaRule, layer.QwenGatedDeltaNetAttention
    rule.forward = forward_gpu.wrap_rule(rule.forward)
    attention._forward_core = forward_gpu.wrap_forward_core(
        attention._forward_core, layer.get_forward_context, layer.is_conv_state_dim_first
    )
