import math

import pytest
from bench_records import CLOCK, ENGINE, block, plan

from paceline.bench.conclude import conclude
from paceline.bench.plan import Arm
from paceline.bench.prediction import predict, rate_by_own_steps
from paceline.bench.records import AuditOutcome, AuditResult, Estimate, Metric, PrefillSteps
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk, PacingMode, PacingSettings, SloSettings

OFF = Arm(name="off")


def fixed(interval: int) -> Arm:
    return Arm(name=f"n={interval}", pacing=PacingSettings(mode=PacingMode.FIXED, interval=interval))


def medians(before: float, during: float, wait: float) -> dict[Metric, Estimate]:
    values = {
        Metric.RESIDENT_RATE_BEFORE: before,
        Metric.RESIDENT_RATE_DURING: during,
        Metric.TIME_TO_FIRST_TOKEN: wait,
    }
    return {metric: Estimate(value=value, low=value, high=value, blocks=2) for metric, value in values.items()}


@pytest.mark.parametrize(("interval", "rate", "wait"), [(4, 11.2, 31.9), (8, 15.6, 46.0)])
def test_the_published_two_card_table(interval: int, rate: float, wait: float) -> None:
    """C=21, Tm=1.014 s, Td=0.168 s, k=4.26: the model's own figures for N=4 and N=8, to their last digit."""
    chunks, mixed, decode, per_step = 21, 1.014, 0.168, 4.26
    measured = medians(per_step / decode, per_step / mixed, chunks * mixed)
    found = predict(fixed(interval), OFF, measured)
    assert round(found[Metric.RESIDENT_RATE_DURING], 1) == rate
    assert math.isclose(found[Metric.TIME_TO_FIRST_TOKEN], wait, abs_tol=0.15)


@pytest.mark.parametrize(
    ("arm", "baseline"),
    [
        (OFF, OFF),
        (fixed(1), OFF),
        (fixed(0), OFF),
        (fixed(8), fixed(4)),
        (
            Arm(
                name="x",
                pacing=PacingSettings(mode=PacingMode.SLO, slo=SloSettings(time_per_output_token_milliseconds=80)),
            ),
            OFF,
        ),
        (fixed(4).model_copy(update={"coalescing": CoalescingSettings(final_chunk=FinalChunk.ENABLED)}), OFF),
    ],
)
def test_where_the_formula_does_not_apply(arm: Arm, baseline: Arm) -> None:
    assert predict(arm, baseline, medians(50.0, 2.0, 10.0)) == {}


def test_a_baseline_that_stood_still_predicts_nothing() -> None:
    assert predict(fixed(4), OFF, medians(50.0, 0.0, 10.0)) == {}
    assert predict(fixed(4), OFF, {}) == {}


@pytest.mark.parametrize(
    ("during", "outcome", "said"),
    [(7.2, AuditOutcome.PASSED, "101% of the 7.1"), (5.6, AuditOutcome.FAILED, "78% of the 7.1")],
)
def test_a_multiple_is_at_least_four_fifths_of_the_prediction(during: float, outcome: AuditOutcome, said: str) -> None:
    """Unpaced 2 tok/s of 50: four times as many steps, each a little later: 4 / (1/2 + 3/50) = 7.14."""
    blocks = [block("off", n, during=2.0) for n in (0, 1)] + [block("n4", n, during=during) for n in (0, 1)]
    result = conclude(plan(), ENGINE, CLOCK, blocks, [])
    audits = [audit for audit in result.audits if audit.name == "pacingFormula"]
    assert [(audit.arm, audit.outcome) for audit in audits] == [("n4", outcome)]
    assert said in audits[0].message
    assert math.isclose(result.arms[1].predicted[Metric.RESIDENT_RATE_DURING], 4 / 0.56)
    assert math.isclose(result.arms[1].predicted[Metric.TIME_TO_FIRST_TOKEN], 10.0 * 1.12)


def steps(chunk_seconds: float, other_seconds: float | None) -> PrefillSteps:
    return PrefillSteps(
        complete=True,
        chunks=8,
        tokens=1_024,
        steps=8 if other_seconds is None else 29,
        mean_chunk_step_seconds=chunk_seconds,
        mean_other_step_seconds=other_seconds,
        revisions=(1,),
    )


def formula_audit(during: float, own: PrefillSteps) -> AuditResult:
    unpaced = [block("off", n, during=2.0, prefill_steps=steps(0.5, None)) for n in (0, 1)]
    paced = [block("n4", n, during=during, prefill_steps=own) for n in (0, 1)]
    [audit] = [a for a in conclude(plan(), ENGINE, CLOCK, unpaced + paced, []).audits if a.name == "pacingFormula"]
    return audit


def test_slower_steps_in_the_paced_blocks_are_not_taken_for_a_schedule_that_was_not_kept() -> None:
    """One token a step; 4 / (0.8 + 3 x 0.04) = 4.35 by the arm's own steps, 7.14 by the unpaced arm's."""
    audit = formula_audit(4.3, steps(0.8, 0.04))
    assert audit.outcome is AuditOutcome.NOT_APPLICABLE
    assert "60% of the 7.1" in audit.message
    assert "99% of the 4.3" in audit.message


@pytest.mark.parametrize("own", [steps(0.5, 0.02), steps(0.5, None)])
def test_too_few_tokens_for_the_steps_that_ran_is_a_failure(own: PrefillSteps) -> None:
    """By its own steps 7.14 too, or every step carried a chunk: the interval was not kept."""
    assert formula_audit(4.3, own).outcome is AuditOutcome.FAILED


def test_tokens_a_step_come_from_the_unpaced_blocks() -> None:
    """Two tokens a step (4 tok/s at 0.5 s): 4 x 2 / (0.5 + 3 x 0.1) = 10; no step times, no figure."""
    unpaced, paced = (
        block("off", during=4.0, prefill_steps=steps(0.5, None)),
        block("n4", prefill_steps=steps(0.5, 0.1)),
    )
    found = rate_by_own_steps(4, [paced], [unpaced])
    assert found is not None
    assert math.isclose(found, 10.0)
    assert rate_by_own_steps(4, [block("n4")], [unpaced]) is None
    assert rate_by_own_steps(4, [paced], [block("off")]) is None
