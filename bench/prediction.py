"""What a fixed interval should do to residents and newcomer, from the same run's unpaced arm.

With C chunks, a mixed step of Tm seconds, a decode step of Td and k tokens a step, pacing by N gives the residents
N*k / (Tm + (N-1)*Td) tokens per second and makes the prefill take C*(Tm + (N-1)*Td). The unpaced rate is k/Tm and the
rate before the prefill k/Td, so k and C cancel and nothing but measured rates is left.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from paceline.bench.plan import Arm
from paceline.bench.records import BlockRecord, Estimate, Metric
from paceline.engine_ext.settings import PacingMode


def predict(arm: Arm, baseline: Arm, measured: Mapping[Metric, Estimate]) -> dict[Metric, float]:
    """Return what the formula gives for an arm, from the baseline's medians.

    Empty where the formula does not apply: the arm has no fixed interval above 1, the baseline is paced itself, their
    coalescing differs, or the baseline lacks a rate.
    """
    interval = arm.pacing.effective_interval
    unpaced = baseline.pacing.mode is not PacingMode.SLO and baseline.pacing.effective_interval == 1
    if interval == 1 or not unpaced or arm.coalescing != baseline.coalescing:
        return {}
    needed = (Metric.RESIDENT_RATE_BEFORE, Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN)
    if any(metric not in measured or measured[metric].value <= 0 for metric in needed):
        return {}
    before, during, wait = (measured[metric].value for metric in needed)
    return {
        Metric.RESIDENT_RATE_DURING: interval / (1 / during + (interval - 1) / before),
        Metric.TIME_TO_FIRST_TOKEN: wait * (1 + (interval - 1) * during / before),
    }


def rate_by_own_steps(interval: int, blocks: Sequence[BlockRecord], baseline: Sequence[BlockRecord]) -> float | None:
    """Return the residents' tokens per second by the formula with the step times of the arm's own blocks, the median.

    The unpaced `baseline` only tells how many tokens a step brings a resident, which no machine's speed changes. None
    where the engine told no step times, which an arm that held nothing back has none of either.
    """
    per_step = [
        block.metrics[Metric.RESIDENT_RATE_DURING] * steps.mean_chunk_step_seconds
        for block in baseline
        if (steps := block.prefill_steps) and steps.mean_chunk_step_seconds
        if Metric.RESIDENT_RATE_DURING in block.metrics
    ]
    cycles = [
        cycle for block in blocks if block.prefill_steps and (cycle := block.prefill_steps.cycle_seconds(interval))
    ]
    return median(interval * median(per_step) / cycle for cycle in cycles) if per_step and cycles else None
