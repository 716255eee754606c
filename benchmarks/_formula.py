"""What a run's blocks tell of the pacing formula where the machine changes its speed: by rounds, and undisturbed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.bench.plan import Arm, ExperimentPlan
from paceline.bench.prediction import predict
from paceline.bench.records import BlockRecord, Estimate, Metric

RATE: Final = Metric.RESIDENT_RATE_DURING
WAIT: Final = Metric.TIME_TO_FIRST_TOKEN

LEAST_DISTURBED: Final = 4
"""One in so many blocks counts as undisturbed: the host halves this machine's speed for seconds at a time."""


def undisturbed(values: Sequence[float], *, higher_is_better: bool) -> float:
    """Return the mean of the best quarter of values, which the machine's other guests slowed down least."""
    best = sorted(values, reverse=higher_is_better)[: math.ceil(len(values) / LEAST_DISTURBED)]
    return statistics.mean(best)


def undisturbed_arms(plan: ExperimentPlan, blocks: Mapping[str, Sequence[BlockRecord]]) -> dict[str, dict[str, Any]]:
    """Return every arm's rate and TTFT on an undisturbed machine, and the errors of what the formula predicts."""
    unpaced = _unpaced(plan, blocks)
    everything = [block for own in blocks.values() for block in own]
    mixed_step = undisturbed(_mixed_steps(unpaced), higher_is_better=False)
    base = best(everything, Metric.RESIDENT_RATE_BEFORE) | {RATE: _exactly(1 / mixed_step)} | best(unpaced, WAIT)
    found = {}
    for arm in plan.arms:
        mine = unpaced if arm == plan.baseline else blocks[arm.name]
        own = best(mine, RATE) | best(mine, WAIT)
        predicted = predict(arm, plan.baseline, base)
        found[arm.name] = {metric.value: round(own[metric].value, 3) for metric in (RATE, WAIT)} | {
            f"{metric.value}Error": round(value / own[metric].value - 1, 4) for metric, value in predicted.items()
        }
    return found


def errors_by_round(
    arm: Arm, plan: ExperimentPlan, blocks: Mapping[str, Sequence[BlockRecord]]
) -> dict[Metric, list[float]]:
    """Return by how much the formula misses each block of a paced arm, predicted from the unpaced ones of its round.

    A round has one block of every arm, so a machine that changes its speed slowly has one speed in it.
    """
    errors: dict[Metric, list[float]] = {RATE: [], WAIT: []}
    for block in blocks[arm.name]:
        together = {name: [b for b in own if b.block == block.block] for name, own in blocks.items()}
        unpaced = _unpaced(plan, together)
        if not (steps := _mixed_steps(unpaced)):
            continue
        everything = [b for own in together.values() for b in own]
        before = statistics.mean(b.metrics[Metric.RESIDENT_RATE_BEFORE] for b in everything)
        base = {
            Metric.RESIDENT_RATE_BEFORE: _exactly(before),
            RATE: _exactly(1 / statistics.mean(steps)),
            WAIT: _exactly(statistics.mean(b.metrics[WAIT] for b in unpaced)),
        }
        for metric, value in predict(arm, plan.baseline, base).items():
            errors[metric].append(value / block.metrics[metric] - 1)
    return errors


def _unpaced(plan: ExperimentPlan, blocks: Mapping[str, Sequence[BlockRecord]]) -> list[BlockRecord]:
    control = [plan.control.name] if plan.control else []
    return [block for name in (plan.baseline.name, *control) for block in blocks[name]]


def _mixed_steps(unpaced: Sequence[BlockRecord]) -> list[float]:
    """Return each block's mean mixed step in seconds, as the engine recorded it.

    The formula takes it, and not the rate that the client counted: that also holds the tokens of the moment before the
    engine had the prompt, some four beside as many as the prompt has chunks.
    """
    found = [block.prefill_steps.mean_chunk_step_seconds for block in unpaced if block.prefill_steps]
    return [seconds for seconds in found if seconds]


def _exactly(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, blocks=1)


def best(blocks: Sequence[BlockRecord], metric: Metric) -> dict[Metric, Estimate]:
    """Return a metric of an undisturbed machine; its interval is the values' whole range."""
    values = [block.metrics[metric] for block in blocks]
    value = undisturbed(values, higher_is_better=metric.higher_is_better)
    return {metric: Estimate(value=value, low=min(values), high=max(values), blocks=len(values))}


def own_steps_error(interval: int, blocks: Sequence[BlockRecord]) -> float | None:
    """Return by how much the formula misses a paced arm's rates, the median over its blocks, None without any.

    It takes each block's own mean mixed and decode step, so that a change of the machine between blocks does not count;
    the formula's cadence of one chunk in N steps, and one token a step for each resident, do.
    """
    errors = [
        interval / cycle / block.metrics[RATE] - 1
        for block in blocks
        if block.prefill_steps and (cycle := block.prefill_steps.cycle_seconds(interval))
    ]
    return round(statistics.median(errors), 4) if errors else None
