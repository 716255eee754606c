"""Whether an engine can run a plan at all, told before anything runs, with the number to use instead."""

from collections.abc import Iterator

from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import EngineFingerprint


class PlanError(ValueError):
    """A plan that this engine can't run. The message has one sentence a line, each with what to do."""


def capacity_problems(plan: ExperimentPlan, engine: EngineFingerprint) -> list[str]:
    """Return what keeps the engine from running the plan; empty where nothing is known to.

    A prompt that is still to be sized is sized to what the engine holds.
    """
    return [*_length_problems(plan, engine), *_step_problems(plan, engine), *_cache_problems(plan, engine)]


def check_capacity(plan: ExperimentPlan, engine: EngineFingerprint) -> None:
    """Raise PlanError where the engine can't run the plan."""
    if problems := capacity_problems(plan, engine):
        raise PlanError("\n".join(problems))


def state_block_tokens(engine: EngineFingerprint) -> int | None:
    """Return the block that a prefill chunk of a hybrid model must fill, in tokens; None where chunks may be any size.

    With `mamba_cache_mode=align` vLLM ends chunks at multiples of the block size only.
    """
    config = engine.cache_config
    if config.get("mamba_cache_mode") != "align" or config.get("enable_prefix_caching") != "True":
        return None
    block = config.get("block_size", "")
    return int(block) if block.isdigit() else None


def longest_prompt(plan: ExperimentPlan, engine: EngineFingerprint) -> int:
    """Return the longest prompt that the engine holds beside the plan's residents, in tokens."""
    work, size = plan.workload, _cache_tokens(engine)
    by_length = (engine.max_model_len or 0) - work.injected_output_tokens
    by_cache = by_length if size is None else size - _resident_tokens(plan)
    return max(0, min(by_length, by_cache))


def _length_problems(plan: ExperimentPlan, engine: EngineFingerprint) -> Iterator[str]:
    limit, work = engine.max_model_len, plan.workload
    if limit is None:
        yield "the engine does not tell its max_model_len in /v1/models; Paceline measures vLLM engines only"
        return
    prompt_tokens = work.injected_prompt_tokens or 0
    if prompt_tokens + work.injected_output_tokens > limit:
        yield (
            f"workload.injectedPromptTokens {prompt_tokens} does not fit the engine's maxModelLen "
            f"{limit}: use at most {limit - work.injected_output_tokens}, or raise spec.model.maxModelLen to "
            f"{prompt_tokens + work.injected_output_tokens}"
        )
    if work.resident_prompt_tokens + work.steady_tokens >= limit:
        yield (
            f"workload.residentPromptTokens {work.resident_prompt_tokens} leaves the residents no room to decode "
            f"within the engine's maxModelLen {limit}: use at most {max(1, limit // 2)}"
        )


def _step_problems(plan: ExperimentPlan, engine: EngineFingerprint) -> Iterator[str]:
    residents = plan.workload.residents
    if engine.max_num_seqs is not None and residents + 1 > engine.max_num_seqs:
        yield (
            f"workload.residents {residents} and the injected prompt are {residents + 1} requests, and the engine runs "
            f"{engine.max_num_seqs} at once: use at most {engine.max_num_seqs - 1} residents, or raise "
            f"spec.engine.maxNumSeqs to {residents + 1}"
        )
    budget, block = engine.max_num_batched_tokens, state_block_tokens(engine) or 1
    if budget is not None and budget < block + residents:
        yield (
            f"spec.engine.maxNumBatchedTokens {budget} is too small for a prefill chunk of {block} tokens beside "
            f"{residents} residents: raise it to at least {block + residents}"
            + (f", or use at most {budget - block} residents" if budget > block else "")
        )


def _cache_problems(plan: ExperimentPlan, engine: EngineFingerprint) -> Iterator[str]:
    size, needed = _cache_tokens(engine), _resident_tokens(plan) + (plan.workload.injected_prompt_tokens or 0)
    if size is not None and needed > size:
        yield (
            f"the workload holds {needed} tokens at once, and the engine's KV cache {size}: use a smaller "
            f"workload.injectedPromptTokens, or a larger spec.engine.kvCache"
        )


def _resident_tokens(plan: ExperimentPlan) -> int:
    return plan.workload.residents * (plan.workload.resident_prompt_tokens + plan.workload.steady_tokens)


def _cache_tokens(engine: EngineFingerprint) -> int | None:
    size = engine.cache_config.get("kv_cache_size_tokens", "")
    return int(size) if size.isdigit() else None
