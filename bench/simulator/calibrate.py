"""A hardware model from stored experiments: from what the engine told of the steps of each measured prefill."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from pydantic import ValidationError

from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import BlockRecord, EngineFingerprint, Metric, PrefillSteps
from paceline.bench.simulator.hardware import Hardware, HardwareError, SimulatedWorkload, StepTime, first_fault
from paceline.engine_ext.settings import PacingMode

APART: Final = 1.5
"""How far the shortest and the longest prompt must lie apart to tell the attention's share from the rest."""
DEFAULT_SEQUENCES: Final = 256


@dataclass(frozen=True)
class Stored:
    """A stored experiment, as far as it calibrates; `draft_tokens` is how many the engine drafts, 0 for none."""

    plan: ExperimentPlan
    engine: EngineFingerprint | None
    blocks: Sequence[BlockRecord]
    draft_tokens: int = 0


@dataclass(frozen=True)
class _Sample:
    """A measured block: its prefill's steps, its residents' rate before, and the prompt's length, in tokens."""

    steps: PrefillSteps
    rate: float
    prompt: int


def calibrate(name: str, experiments: Sequence[Stored]) -> Hardware:
    """Fit a hardware model to experiments on one engine.

    Raises HardwareError where their blocks tell too little, or of what the simulator can't hold.
    """
    try:
        return _fit(name, experiments)
    except ValidationError as error:
        raise HardwareError(f"no hardware model can be fitted: {first_fault(error)}") from None


def _fit(name: str, experiments: Sequence[Stored]) -> Hardware:
    models = sorted({stored.engine.model for stored in experiments if stored.engine is not None})
    if len(models) > 1:
        raise HardwareError(f"the experiments ran on different models: {', '.join(models)}; give those of one engine")
    samples = [sample for stored in experiments for sample in _samples(stored.blocks)]
    if not samples:
        raise HardwareError(
            "no measured block tells the steps of its prefill: only experiments on an engine with Paceline's admin "
            "port can calibrate the simulator"
        )
    others = [s.steps.mean_other_step_seconds for s in samples if s.steps.mean_other_step_seconds is not None]
    rate = median(sample.rate for sample in samples)
    told = median(others) if others else 1 / rate
    drafts = max(stored.draft_tokens for stored in experiments)
    per_step = min(1.0 + drafts, max(1.0, rate * told))
    # The client sees the time between two steps, too; the engine tells of steps beside a prefill, which may be slower.
    decode = max(told, per_step / rate)
    token, pair = _fit_chunks(samples, decode, overhead=decode - told)
    work = SimulatedWorkload(
        residents=experiments[0].plan.workload.residents,
        resident_context_tokens=experiments[0].plan.workload.resident_prompt_tokens,
        prompt_tokens=samples[0].prompt,
    )
    engine = experiments[0].engine
    budget = _budget(samples, engine, work.residents * (1 + drafts))
    return Hardware(
        name=name,
        description=f"calibrated from {len(samples)} blocks of {len(experiments)} experiments",
        source=_source(pair is not None, bool(others)),
        step_time=StepTime(
            base_milliseconds=decode * 1e3,
            per_prefill_token_microseconds=token * 1e6,
            per_prefill_pair_nanoseconds=(pair or 0.0) * 1e9,
        ),
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, (engine.max_num_seqs if engine else None) or DEFAULT_SEQUENCES),
        draft_tokens=drafts,
        tokens_per_step=per_step,
        admission_seconds=_admission([block for stored in experiments for block in _unpaced(stored)]),
        workload=work,
    )


def _samples(blocks: Sequence[BlockRecord]) -> list[_Sample]:
    return [
        _Sample(block.prefill_steps, block.metrics[Metric.RESIDENT_RATE_BEFORE], block.injected_prompt_tokens)
        for block in blocks
        if not block.warm_up
        and not block.problems
        and block.prefill_steps is not None
        and block.prefill_steps.complete
        and block.prefill_steps.mean_chunk_step_seconds is not None
        and block.metrics.get(Metric.RESIDENT_RATE_BEFORE, 0) > 0
    ]


def _fit_chunks(samples: Sequence[_Sample], decode: float, overhead: float) -> tuple[float, float | None]:
    """Return the seconds of a prefill token and of a pair, by least squares; no pair where it can't be told apart."""
    tokens = np.array([sample.steps.tokens / sample.steps.chunks for sample in samples])
    pairs = np.array([sample.steps.tokens**2 / 2 / sample.steps.chunks for sample in samples])
    seconds = np.array([(sample.steps.mean_chunk_step_seconds or 0.0) + overhead - decode for sample in samples])
    lengths = [sample.steps.tokens for sample in samples]
    if max(lengths) >= APART * min(lengths):
        inputs = np.column_stack([tokens, pairs])
        (token, pair), *_ = np.linalg.lstsq(inputs / inputs.max(axis=0), seconds)
        if token >= 0 and pair >= 0:
            return float(token / tokens.max()), float(pair / pairs.max())
    return max(0.0, float(tokens @ seconds / (tokens @ tokens))), None


def _budget(samples: Sequence[_Sample], engine: EngineFingerprint | None, decoding: int) -> int:
    """Return the step's token limit that makes as many chunks as were seen: the engine's own, or one that does."""
    first = samples[0].steps
    told = engine.max_num_batched_tokens if engine else None
    if told is not None and told > decoding and math.ceil(first.tokens / (told - decoding)) == first.chunks:
        return told
    return math.ceil(first.tokens / first.chunks) + decoding


def _unpaced(stored: Stored) -> list[BlockRecord]:
    arms = {
        arm.name
        for arm in stored.plan.all_arms
        if arm.pacing.mode is not PacingMode.SLO and arm.pacing.effective_interval == 1
    }
    return [block for block in stored.blocks if block.arm in arms and not block.warm_up]


def _admission(blocks: Sequence[BlockRecord]) -> float:
    waits = [
        block.metrics[Metric.TIME_TO_FIRST_TOKEN] - block.metrics[Metric.ADMISSION_TO_FIRST_TOKEN]
        for block in blocks
        if {Metric.TIME_TO_FIRST_TOKEN, Metric.ADMISSION_TO_FIRST_TOKEN} <= block.metrics.keys()
    ]
    return max(0.0, median(waits)) if waits else 0.0


def _source(attention_told: bool, decode_told: bool) -> str:
    attention = (
        "prompts of several lengths tell the attention's share of a chunk"
        if attention_told
        else "one prompt length can't tell the attention's share of a chunk: good for prompts of about that length"
    )
    decode = "" if decode_told else "; no arm held a prefill, so a decode step is taken to yield one token a resident"
    return f"step records of the engine; {attention}{decode}"
