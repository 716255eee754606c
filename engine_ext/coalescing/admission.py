"""Who may be coalesced: what the engine, the request and its company must be like."""

from collections.abc import Iterator
from typing import Any, Final

from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec

from paceline.engine_ext.coalescing.plan import Refusal
from paceline.engine_ext.settings import CoalescingAdmission

ARCHITECTURES: Final = frozenset(
    {
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Models whose gated delta net layers run the code that `forward_cpu` and `forward_gpu` wrap."""
CUT_TOKENS: Final = 64
"""The kernels' chunk: a span may be cut at its multiples without changing the order of the arithmetic."""


def engine_obstacles(scheduler: Any) -> Iterator[str]:
    """Yield why no span of this engine can be coalesced, whatever the request."""
    yield from _model_obstacles(scheduler)
    yield from _device_obstacles(scheduler)
    if scheduler.num_spec_tokens:
        yield "speculative decoding is on"
    if scheduler.mamba_partial_cache_hit:
        yield "prefixes are cached at a finer grain than a block"
    if scheduler.kv_cache_manager.coordinator.retention_interval != 0:
        yield "prefix_cache_retention_interval is not 0: every chunk's end is kept, so fewer chunks keep fewer states"
    if scheduler.num_prefill_lookahead or scheduler.prefix_replay_tokens:
        yield "the engine recomputes or looks ahead in prompts"
    if scheduler.connector is not None:
        yield "a KV connector loads or stores blocks"
    if scheduler.parallel_config.pipeline_parallel_size > 1:
        yield "pipeline parallelism is on"


def _model_obstacles(scheduler: Any) -> Iterator[str]:
    architectures = scheduler.vllm_config.model_config.architectures
    specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
    states = [spec for spec in specs if isinstance(spec, MambaSpec)]
    block = scheduler.cache_config.block_size
    if not scheduler.need_mamba_block_aligned_split:
        yield "the model keeps no recurrent state at block boundaries (it needs prefix caching and align mode)"
    elif any(spec.mamba_type is not MambaAttentionBackendEnum.GDN_ATTN for spec in states) or not (
        ARCHITECTURES & set(architectures)
    ):
        yield f"states are exported for gated delta nets of the Qwen family only, not for {', '.join(architectures)}"
    elif block % CUT_TOKENS or any(spec.block_size != block for spec in states):
        yield f"cache blocks of {block} tokens are no multiple of {CUT_TOKENS}, at which the kernel can be cut"


def _device_obstacles(scheduler: Any) -> Iterator[str]:
    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        yield f"states are exported on CPU and CUDA, not on {current_platform.device_name}"
    if current_platform.is_cuda() and _cutedsl(scheduler.vllm_config):
        yield "the CuteDSL kernel of gated delta nets can't be cut; leave gdn_prefill_backend at its default"


def _cutedsl(vllm_config: Any) -> bool:
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import _resolve_gdn_prefill_backend

    return bool(_resolve_gdn_prefill_backend(vllm_config)[1] == "cutedsl")


def request_refusal(request: Any, external_tokens: int) -> Refusal | None:
    """Return why this request is split as usual, None when it may be coalesced."""
    if request.num_preemptions:
        return Refusal.PREEMPTED
    if request.num_tokens != request.num_prompt_tokens or request.spec_token_ids:
        return Refusal.NOT_A_FRESH_PROMPT
    if request.has_encoder_inputs:
        return Refusal.MULTIMODAL
    if external_tokens:
        return Refusal.EXTERNAL_TOKENS
    return None


def company_refusal(scheduler: Any, request: Any, admission: CoalescingAdmission) -> Refusal | None:
    """Return why the requests beside this one keep it from being coalesced.

    Running, waiting and skipped requests count. One that was skipped in this very step is in none of the queues.
    """
    if admission is CoalescingAdmission.EXCLUSIVE and len(scheduler.requests) > 1:
        return Refusal.NOT_ALONE
    others = _with_prompt_tokens_left(scheduler)
    return Refusal.OTHER_PREFILL if any(other is not request for other in others) else None


def _with_prompt_tokens_left(scheduler: Any) -> Iterator[Any]:
    yield from scheduler.waiting
    yield from scheduler.kv_holding_waiting
    yield from scheduler.deferred_waiting
    for request in scheduler.running:
        if request.num_computed_tokens < request.num_prompt_tokens or request.is_prefill_chunk:
            yield request
