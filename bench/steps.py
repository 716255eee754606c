"""The engine's own record of its steps (admin port): which of them carried the injected prompt."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from paceline.bench.records import PrefillSteps


class EngineStep(BaseModel):
    """One finished step, as far as the benchmark reads it; `scheduled` is tokens by request id."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    engine: int
    step: int
    revision: int | None = None
    duration_seconds: float
    scheduled: dict[str, int]


def prefill_steps(steps: Sequence[EngineStep], request_id: str, prompt_tokens: int) -> PrefillSteps:
    """Return the steps of one request's prefill of `prompt_tokens` uncached tokens, out of an engine's records.

    vLLM puts a prefix and a suffix to a request's id, so the id is looked for inside theirs.
    """
    chunks = [(step, count) for step in steps if (count := _tokens_of(step, request_id))]
    chunks.sort(key=lambda chunk: chunk[0].step)
    before = [0, *accumulate(count for _, count in chunks)]
    chunks = [chunk for chunk, done in zip(chunks, before, strict=False) if done < prompt_tokens]
    tokens = sum(count for _, count in chunks)
    if not chunks:
        return PrefillSteps(complete=False, chunks=0, tokens=0, steps=0)
    first, last = chunks[0][0], chunks[-1][0]
    chunk_numbers = {step.step for step, _ in chunks}
    during = [step for step in steps if step.engine == first.engine and first.step <= step.step <= last.step]
    others = [step.duration_seconds for step in during if step.step not in chunk_numbers]
    return PrefillSteps(
        complete=tokens >= prompt_tokens,
        chunks=len(chunks),
        tokens=tokens,
        steps=last.step - first.step + 1,
        mean_chunk_step_seconds=fmean(step.duration_seconds for step, _ in chunks),
        mean_other_step_seconds=fmean(others) if others else None,
        revisions=tuple(sorted({step.revision for step in during if step.revision is not None})),
    )


def _tokens_of(step: EngineStep, request_id: str) -> int:
    return sum(tokens for key, tokens in step.scheduled.items() if request_id in key)
