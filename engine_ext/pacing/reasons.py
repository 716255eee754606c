"""Where pacing can't apply, and why: the sentences that status, log and metrics carry."""

from typing import Any


def unpaceable(vllm_config: Any) -> list[str]:
    """Return why an engine of this configuration can't be paced; empty when it can."""
    model = vllm_config.model_config
    reasons = []
    if model.runner_type == "pooling":
        reasons.append("a pooling model has no decoding requests to protect")
    if model.is_encoder_decoder:
        reasons.append("an encoder-decoder model's prefill can't be chunked")
    if getattr(model, "is_diffusion", False):
        reasons.append("a diffusion model decodes whole canvases, not single tokens")
    if vllm_config.kv_transfer_config is not None:
        reasons.append("a KV connector is configured, and holding waiting requests would delay its loads")
    if getattr(vllm_config, "ec_transfer_config", None) is not None:
        reasons.append("an encoder-cache connector is configured, and holding requests would delay its loads")
    return reasons


def own_cadence(scheduler: Any) -> list[str]:
    """Return why a scheduler that holds prefills itself, as vLLM's can since 0.33, is not paced; mostly empty."""
    interval = getattr(scheduler, "local_prefill_interval", 1)
    if (
        scheduler.parallel_config.data_parallel_size > 1
    ):  # there the engine's core holds prefills, for all ranks at once
        interval = max(interval, getattr(scheduler.scheduler_config, "prefill_schedule_interval", 1))
    if interval <= 1:
        return []
    return [f"vLLM itself holds prefills for {interval} steps: leave prefill_schedule_interval at 1 to have them paced"]
