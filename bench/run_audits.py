"""Checks that need the whole run: outputs of one arm against another's, and the A/A arm."""

from collections.abc import Mapping, Sequence
from typing import Final

from paceline.bench.audits import (
    CONTROL_ARM,
    ENGINE_REPEATS,
    OUTPUTS_EQUAL,
    PACING_FORMULA,
    STEADY_MACHINE,
    failed,
    not_applicable,
    passed,
)
from paceline.bench.bootstrap import judge_ratio
from paceline.bench.outputs import OutputComparison, compare_arms
from paceline.bench.plan import ExperimentPlan
from paceline.bench.prediction import rate_by_own_steps
from paceline.bench.records import ArmResult, AuditResult, BlockRecord, Comparison, Metric, RequestRecord, Verdict

RATE: Final = Metric.RESIDENT_RATE_DURING
STEADY_WITHIN: Final = 1.1
"""How far the rates before the prefill may be apart, as a ratio, on a machine that counts as steady."""
LEAST_SHARE_OF_PREDICTION: Final = 0.8
"""How much of the predicted rate an arm must reach for its pacing to have worked."""


def output_audits(plan: ExperimentPlan, requests: Sequence[RequestRecord]) -> list[AuditResult]:
    """Return whether the engine repeats itself, and for each arm but the A/A one whether it equals the baseline.

    An output is compared with that of the same prompt: the same block, role and index.
    """
    base = [record for record in requests if record.arm == plan.baseline.name and not record.warm_up]
    names = [arm.name for arm in plan.all_arms if arm.name != plan.baseline.name]
    by_arm = {name: [record for record in requests if record.arm == name and not record.warm_up] for name in names}
    control = plan.control.name if plan.control else None
    repeats = compare_arms([record for record in requests if record.warm_up], base, plan.logprob_tolerance)
    if control:
        repeats += compare_arms(by_arm[control], base, plan.logprob_tolerance)
    return [
        _repeat_audit(repeats, plan.logprob_tolerance),
        *(
            _output_audit(
                name, compare_arms(by_arm[name], base, plan.logprob_tolerance), repeats, plan.logprob_tolerance
            )
            for name in names
            if name != control
        ),
    ]


def _repeat_audit(repeats: OutputComparison, tolerance: float) -> AuditResult:
    if not repeats.tokens:
        reason = "nothing was run twice under the same settings: add controlArm or a warm-up block"
        return not_applicable(ENGINE_REPEATS, reason)
    if not repeats.equal:
        return not_applicable(
            ENGINE_REPEATS,
            f"the engine is not deterministic: under the same settings {repeats.wrong} of {repeats.pairs} outputs "
            f"differ by more than {tolerance:g} ({repeats.summary()})",
        )
    return passed(ENGINE_REPEATS, f"the same settings give the same outputs within {tolerance:g}: {repeats.summary()}")


def _output_audit(arm: str, outputs: OutputComparison, repeats: OutputComparison, tolerance: float) -> AuditResult:
    if not outputs.tokens:
        return not_applicable(OUTPUTS_EQUAL, "no outputs with token ids to compare", arm)
    if not repeats.equal:
        return not_applicable(
            OUTPUTS_EQUAL,
            "the engine gives different outputs under the same settings, so they say nothing about the arms",
            arm,
        )
    if not outputs.equal:
        unknown = "" if repeats.pairs else "; whether the engine repeats itself is not known, add controlArm"
        return failed(
            OUTPUTS_EQUAL,
            f"{outputs.wrong} of {outputs.pairs} outputs differ by more than {tolerance:g} ({outputs.summary()})"
            + unknown,
            arm,
        )
    return passed(OUTPUTS_EQUAL, f"equal within {tolerance:g}: {outputs.summary()}", arm)


def formula_audits(
    plan: ExperimentPlan, arms: Sequence[ArmResult], blocks: Mapping[str, Sequence[BlockRecord]]
) -> list[AuditResult]:
    """Return, for each arm that the pacing formula speaks of, whether its residents got what it predicts.

    The formula counts on a machine of one speed. An arm that falls short of the unpaced arm's prediction, but not of
    the one by its own blocks' step times, was scheduled as asked on a machine that had become slower: not judged.
    """
    settings = {arm.name: arm for arm in plan.all_arms}
    audits = []
    for arm in arms:
        measured, predicted = arm.metrics.get(RATE), arm.predicted.get(RATE)
        if measured is None or predicted is None:
            continue
        message = (
            f"residents got {measured.value:.1f} tok/s, {measured.value / predicted:.0%} of the {predicted:.1f} that "
            f"the formula predicts from the unpaced arm"
        )
        if measured.value >= LEAST_SHARE_OF_PREDICTION * predicted:
            audits.append(passed(PACING_FORMULA, message, arm.arm))
            continue
        interval = settings[arm.arm].pacing.effective_interval
        own = rate_by_own_steps(interval, blocks[arm.arm], blocks[plan.baseline.name])
        if own is not None and measured.value >= LEAST_SHARE_OF_PREDICTION * own:
            slower = (
                f", but {measured.value / own:.0%} of the {own:.1f} by the step times of its own blocks: those "
                f"steps were slower than the unpaced arm's, run again on a quiet machine"
            )
            audits.append(not_applicable(PACING_FORMULA, message + slower, arm.arm))
        else:
            audits.append(failed(PACING_FORMULA, message, arm.arm))
    return audits


def steady_audits(comparisons: Sequence[Comparison]) -> list[AuditResult]:
    """Return, for each arm, whether residents decoded before the prefill about as fast as in the baseline.

    Without a prefill no setting has anything to do, so a difference there is the machine's.
    """
    audits = []
    for comparison in comparisons:
        ratio = comparison.ratio
        if comparison.metric is not Metric.RESIDENT_RATE_BEFORE or ratio is None:
            continue
        message = f"before the prefill, where no setting matters, residents decoded x{ratio.value:.2f} as fast"
        if judge_ratio(ratio, STEADY_WITHIN, higher_is_better=True) is Verdict.NO_DIFFERENCE:
            audits.append(passed(STEADY_MACHINE, message, comparison.arm))
        else:
            advice = "the machine was not steady, run again on a quiet one"
            audits.append(failed(STEADY_MACHINE, f"{message} as in the baseline: {advice}", comparison.arm))
    return audits


def control_audit(plan: ExperimentPlan, comparisons: Sequence[Comparison]) -> list[AuditResult]:
    """Return whether the A/A arm showed no difference on any metric; nothing where the plan has none."""
    control = plan.control
    if control is None:
        return []
    own = [comparison for comparison in comparisons if comparison.arm == control.name]
    compared = [comparison for comparison in own if comparison.verdict is not Verdict.INVALID]
    different = [comparison for comparison in compared if comparison.verdict is not Verdict.NO_DIFFERENCE]
    if different:
        what = ", ".join(f"{c.metric.value} x{c.ratio.value:.3g}" for c in different if c.ratio)
        message = f"the same settings measured twice differ ({what}): the machine is not steady, or blocks are too few"
        return [failed(CONTROL_ARM, message, control.name)]
    if not compared:
        return [not_applicable(CONTROL_ARM, "the A/A arm could not be compared with the baseline", control.name)]
    return [passed(CONTROL_ARM, "the same settings measured twice show no difference", control.name)]
