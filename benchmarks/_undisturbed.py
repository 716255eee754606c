"""What blocks tell of a machine that others use as well: what it does when nobody disturbs it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.bench.plan import ExperimentPlan
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
    """Return every arm's rate and TTFT on an undisturbed machine, what the formula predicts for them, and its errors.

    The formula gets the rate before the prefill from the blocks of all arms, which ran the same then, and the rest
    from those of the unpaced arm and its control: the TTFT, and the mixed step as the engine recorded it. What a
    client counts from the prompt's sending to its first token also holds the tokens of the moment before the engine
    had the prompt, some four beside as many as the prompt has chunks.
    """
    control = [plan.control.name] if plan.control else []
    unpaced = [block for name in (plan.baseline.name, *control) for block in blocks[name]]
    everything = [block for own in blocks.values() for block in own]
    mixed_steps = [block.prefill_steps.mean_chunk_step_seconds for block in unpaced if block.prefill_steps]
    mixed_step = undisturbed([seconds for seconds in mixed_steps if seconds], higher_is_better=False)
    rate = Estimate(value=1 / mixed_step, low=1 / mixed_step, high=1 / mixed_step, blocks=len(mixed_steps))
    base = best(everything, Metric.RESIDENT_RATE_BEFORE) | {RATE: rate} | best(unpaced, WAIT)
    found = {}
    for arm in plan.arms:
        mine = unpaced if arm == plan.baseline else blocks[arm.name]
        own = best(mine, RATE) | best(mine, WAIT)
        predicted = predict(arm, plan.baseline, base)
        found[arm.name] = {metric.value: round(own[metric].value, 3) for metric in (RATE, WAIT)} | {
            f"{metric.value}Error": round(value / own[metric].value - 1, 4) for metric, value in predicted.items()
        }
    return found


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
    errors = []
    for block in blocks:
        steps = block.prefill_steps
        if steps is not None and steps.mean_chunk_step_seconds and steps.mean_other_step_seconds:
            cycle = steps.mean_chunk_step_seconds + (interval - 1) * steps.mean_other_step_seconds
            errors.append(interval / cycle / block.metrics[RATE] - 1)
    return round(statistics.median(errors), 4) if errors else None
