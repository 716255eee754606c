"""From a run's raw records to its results: arms, comparisons with their verdicts, and audits."""

from collections.abc import Sequence

from paceline.bench.audits import INVALIDATING, arm_audits
from paceline.bench.bootstrap import judge_ratio, median_estimate, noise_floor, ratio_estimate
from paceline.bench.plan import ExperimentPlan
from paceline.bench.prediction import predict
from paceline.bench.records import (
    ArmResult,
    AuditOutcome,
    AuditResult,
    BlockRecord,
    ClockOrigin,
    Comparison,
    EngineFingerprint,
    Estimate,
    ExperimentResult,
    Metric,
    RequestRecord,
    Verdict,
)
from paceline.bench.run_audits import control_audit, formula_audits, output_audits, steady_audits


def conclude(
    plan: ExperimentPlan,
    engine: EngineFingerprint,
    clock: ClockOrigin,
    blocks: Sequence[BlockRecord],
    requests: Sequence[RequestRecord],
) -> ExperimentResult:
    """Return what follows from a run's records. Warm-up blocks only serve to tell whether the engine repeats itself."""
    measured = {arm.name: [b for b in blocks if b.arm == arm.name and not b.warm_up] for arm in plan.all_arms}
    baseline = plan.baseline.name
    audits = [audit for arm, own in measured.items() for audit in arm_audits(plan, arm, own, measured[baseline])]
    arms = _with_predictions(plan, [_arm_result(plan, arm, own, audits) for arm, own in measured.items()])
    comparisons = _comparisons(plan, measured, {arm.arm: arm for arm in arms})
    audits += output_audits(plan, requests)
    audits += formula_audits(plan, arms, measured)
    audits += steady_audits(comparisons)
    audits += control_audit(plan, comparisons)
    return ExperimentResult(
        engine=engine, clock=clock, arms=tuple(arms), comparisons=tuple(comparisons), audits=tuple(audits)
    )


def _arm_result(
    plan: ExperimentPlan, arm: str, blocks: Sequence[BlockRecord], audits: Sequence[AuditResult]
) -> ArmResult:
    reasons = [
        f"{audit.name}: {audit.message}"
        for audit in audits
        if audit.arm == arm and audit.name in INVALIDATING and audit.outcome is AuditOutcome.FAILED
    ]
    values = {metric: [block.metrics[metric] for block in blocks if metric in block.metrics] for metric in Metric}
    return ArmResult(
        arm=arm,
        valid=not reasons,
        reasons=tuple(reasons),
        injected_prompt_tokens=plan.workload.prompt_tokens,
        planned_requests=plan.blocks * (plan.workload.residents + 1),
        completed_requests=sum(block.completed_requests for block in blocks),
        metrics={
            metric: median_estimate(found, plan.confidence_percent, plan.seed)
            for metric, found in values.items()
            if found
        },
    )


def _with_predictions(plan: ExperimentPlan, arms: Sequence[ArmResult]) -> list[ArmResult]:
    settings = {arm.name: arm for arm in plan.all_arms}
    base = next(arm for arm in arms if arm.arm == plan.baseline.name)
    return [
        arm.model_copy(update={"predicted": predict(settings[arm.arm], plan.baseline, base.metrics)}) for arm in arms
    ]


def _comparisons(
    plan: ExperimentPlan, measured: dict[str, list[BlockRecord]], arms: dict[str, ArmResult]
) -> list[Comparison]:
    baseline = plan.baseline.name
    others = [name for name in measured if name != baseline]
    ratios = {
        (name, metric): _paired_ratio(plan, metric, measured[name], measured[baseline])
        for name in others
        for metric in Metric
    }
    control = plan.control.name if plan.control else None
    comparisons = []
    for (name, metric), ratio in ratios.items():
        if metric not in arms[name].metrics and metric not in arms[baseline].metrics:
            continue
        noise = ratios.get((control, metric)) if control and name != control else None
        verdict, reason = _verdict(plan, metric, ratio, noise, [arms[name], arms[baseline]])
        comparisons.append(
            Comparison(
                arm=name,
                baseline=baseline,
                metric=metric,
                ratio=None if verdict is Verdict.INVALID else ratio,
                verdict=verdict,
                reason=reason,
            )
        )
    return comparisons


def _paired_ratio(
    plan: ExperimentPlan, metric: Metric, arm: Sequence[BlockRecord], baseline: Sequence[BlockRecord]
) -> Estimate | None:
    base = {block.block: block.metrics[metric] for block in baseline if metric in block.metrics}
    pairs = [(b.metrics[metric], base[b.block]) for b in arm if metric in b.metrics and b.block in base]
    if not pairs:
        return None
    mine, theirs = zip(*pairs, strict=True)
    return ratio_estimate(mine, theirs, plan.confidence_percent, plan.seed)


def _verdict(
    plan: ExperimentPlan, metric: Metric, ratio: Estimate | None, noise: Estimate | None, arms: Sequence[ArmResult]
) -> tuple[Verdict, str]:
    invalid = [arm for arm in arms if not arm.valid]
    if invalid:
        return Verdict.INVALID, f"arm {invalid[0].arm} does not count: {invalid[0].reasons[0]}"
    if ratio is None:
        return Verdict.INVALID, "a value of 0 or a missing one leaves no ratio"
    if ratio.blocks == 1:
        return (
            Verdict.NO_DIFFERENCE,
            f"x{ratio.value:.3g} in one block, which tells nothing of the spread: use blocks 2",
        )
    floor = noise_floor(noise, plan.indifference_percent)
    verdict = judge_ratio(ratio, floor, higher_is_better=metric.higher_is_better)
    said = "lies beyond" if verdict is not Verdict.NO_DIFFERENCE else "does not lie wholly beyond"
    return verdict, (
        f"the {plan.confidence_percent:g}% interval {ratio.low:.3g} to {ratio.high:.3g} of {ratio.blocks} blocks "
        f"{said} the noise of x{floor:.3g}"
    )
