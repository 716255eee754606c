import math
from typing import Any

import pytest
from bench_records import CLOCK, ENGINE, block, counters, plan

from paceline.bench.conclude import conclude
from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import (
    AuditOutcome,
    BlockRecord,
    Comparison,
    ExperimentResult,
    Metric,
    RequestRecord,
    RequestState,
    Role,
    Verdict,
)

OFF = [block("off", 0, during=2.0, ttft=10.0), block("off", 1, during=2.5, ttft=10.5)]
N4 = [block("n4", 0, during=8.0, ttft=11.0), block("n4", 1, during=7.5, ttft=12.0)]


def result(
    blocks: list[BlockRecord], requests: list[RequestRecord] | None = None, given: ExperimentPlan | None = None
) -> ExperimentResult:
    return conclude(given or plan(), ENGINE, CLOCK, blocks, requests or [])


def comparison(found: ExperimentResult, metric: Metric, arm: str = "n4") -> Comparison:
    return next(each for each in found.comparisons if (each.arm, each.metric) == (arm, metric))


def outcomes(found: ExperimentResult, name: str) -> list[AuditOutcome]:
    return [audit.outcome for audit in found.audits if audit.name == name]


def test_medians_ratios_and_verdicts_by_hand() -> None:
    found = result([*OFF, *N4])
    off, n4 = found.arms
    assert off.metrics[Metric.RESIDENT_RATE_DURING].value == 2.25
    assert n4.metrics[Metric.TIME_TO_FIRST_TOKEN].value == 11.5
    assert (off.valid, off.planned_requests, off.completed_requests) == (True, 6, 6)

    during = comparison(found, Metric.RESIDENT_RATE_DURING)
    assert during.ratio is not None
    assert math.isclose(during.ratio.value, math.sqrt(4.0 * 3.0))  # block by block 8/2 and 7.5/2.5
    assert (round(during.ratio.low, 9), round(during.ratio.high, 9)) == (3.0, 4.0)
    assert during.verdict is Verdict.BETTER

    wait = comparison(found, Metric.TIME_TO_FIRST_TOKEN)
    assert wait.ratio is not None
    assert math.isclose(wait.ratio.low, 1.1)
    assert wait.verdict is Verdict.WORSE  # a longer wait is worse
    assert comparison(found, Metric.RESIDENT_RATE_BEFORE).verdict is Verdict.NO_DIFFERENCE


def test_warm_up_blocks_are_not_counted() -> None:
    warm_up = block("off", 0, during=999.0, warm_up=True, completed_requests=0)
    assert result([warm_up, *OFF, *N4]).arms == result([*OFF, *N4]).arms


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"completed_requests": 2}, "completions: 5 of 6"),
        ({"problems": ("the engine died",)}, "the engine died"),
        ({"counters": counters(reset=True)}, "countersIntact"),
        ({"injected_cached_tokens": 512}, "coldPrompt"),
    ],
)
def test_an_arm_that_does_not_count_is_never_better(bad: dict[str, Any], said: str) -> None:
    found = result([*OFF, N4[0], block("n4", 1, during=100.0, ttft=1.0, **bad)])
    assert [arm.valid for arm in found.arms] == [True, False]
    assert said in found.arms[1].reasons[0]
    assert {each.verdict for each in found.comparisons} == {Verdict.INVALID}
    assert all(each.ratio is None for each in found.comparisons)
    assert not found.trustworthy


def test_a_baseline_that_does_not_count_leaves_nothing_to_compare_with() -> None:
    found = result([OFF[0], block("off", 1, completed_requests=0), *N4])
    assert [arm.valid for arm in found.arms] == [False, True]
    assert {each.verdict for each in found.comparisons} == {Verdict.INVALID}


def test_an_arm_that_did_not_run_at_all() -> None:
    found = result(OFF)
    assert (found.arms[1].valid, found.arms[1].completed_requests, found.arms[1].metrics) == (False, 0, {})
    assert comparison(found, Metric.TIME_TO_FIRST_TOKEN).verdict is Verdict.INVALID


def test_residents_that_stood_still_leave_no_ratio() -> None:
    still = [block("off", number, during=0.0) for number in (0, 1)]
    found = comparison(result([*still, *N4]), Metric.RESIDENT_RATE_DURING)
    assert (found.verdict, found.ratio) == (Verdict.INVALID, None)
    assert "leaves no ratio" in found.reason


def control(first: float, second: float) -> list[BlockRecord]:
    return [block("off-control", 0, during=first), block("off-control", 1, during=second)]


def test_the_control_arm_must_show_no_difference() -> None:
    steady = result([*OFF, *N4, *control(2.02, 2.48)], given=plan(control_arm=True))
    assert outcomes(steady, "controlArm") == [AuditOutcome.PASSED]
    assert steady.trustworthy
    shaky = result([*OFF, *N4, *control(3.0, 3.5)], given=plan(control_arm=True))
    assert outcomes(shaky, "controlArm") == [AuditOutcome.FAILED]
    assert not shaky.trustworthy


def test_what_the_control_arm_shows_is_not_claimed_for_another() -> None:
    given = plan(control_arm=True)
    small = [block("n4", 0, during=2.4), block("n4", 1, during=3.0)]  # x1.2 in both blocks
    sure = result([*OFF, *small, *control(2.0, 2.5)], given=given)
    assert comparison(sure, Metric.RESIDENT_RATE_DURING).verdict is Verdict.BETTER
    unsure = result([*OFF, *small, *control(2.6, 1.9)], given=given)  # the repeat was x1.3 and x0.76
    assert comparison(unsure, Metric.RESIDENT_RATE_DURING).verdict is Verdict.NO_DIFFERENCE


def test_a_machine_that_was_faster_for_one_arm_is_told() -> None:
    def faster(rate: float) -> list[BlockRecord]:
        metrics = {**N4[0].metrics, Metric.RESIDENT_RATE_BEFORE: rate}
        return [block("n4", number, metrics=metrics) for number in (0, 1)]

    assert outcomes(result([*OFF, *faster(51.0)]), "steadyMachine") == [AuditOutcome.PASSED]
    assert outcomes(result([*OFF, *faster(70.0)]), "steadyMachine") == [AuditOutcome.FAILED]


def test_one_block_an_arm_gives_no_verdict() -> None:
    found = result([OFF[0], N4[0]], given=plan(blocks=1))
    during = comparison(found, Metric.RESIDENT_RATE_DURING)
    assert during.verdict is Verdict.NO_DIFFERENCE
    assert during.ratio is not None
    assert math.isclose(during.ratio.value, 4.0)
    assert "one block" in during.reason


def output(arm: str, logprob: float, *, warm_up: bool = False) -> RequestRecord:
    return RequestRecord(
        request_id=f"{arm}-{warm_up}",
        role=Role.INJECTED,
        arm=arm,
        block=0,
        warm_up=warm_up,
        state=RequestState.FINISHED,
        prompt_tokens=1,
        max_tokens=1,
        intended_seconds=0.0,
        finished_seconds=1.0,
        output_token_ids=(1,),
        output_logprobs=(logprob,),
    )


@pytest.mark.parametrize(
    ("requests", "repeats", "equal"),
    [
        (
            [output("off", -1.0, warm_up=True), output("off", -1.0), output("n4", -1.0)],
            AuditOutcome.PASSED,
            AuditOutcome.PASSED,
        ),
        (
            [output("off", -1.0, warm_up=True), output("off", -1.0), output("n4", -2.0)],
            AuditOutcome.PASSED,
            AuditOutcome.FAILED,
        ),
        # Where the same settings differ from run to run, a difference between arms says nothing.
        (
            [output("off", -3.0, warm_up=True), output("off", -1.0), output("n4", -2.0)],
            AuditOutcome.NOT_APPLICABLE,
            AuditOutcome.NOT_APPLICABLE,
        ),
        # Nothing was run twice: a difference is still a failure.
        ([output("off", -1.0), output("n4", -2.0)], AuditOutcome.NOT_APPLICABLE, AuditOutcome.FAILED),
        ([], AuditOutcome.NOT_APPLICABLE, AuditOutcome.NOT_APPLICABLE),
    ],
)
def test_outputs_are_compared_where_the_engine_repeats_itself(
    requests: list[RequestRecord], repeats: AuditOutcome, equal: AuditOutcome
) -> None:
    found = result([*OFF, *N4], requests)
    assert outcomes(found, "engineRepeats") == [repeats]
    assert outcomes(found, "outputsEqual") == [equal]
