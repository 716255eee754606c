import math

import pytest
from bench_records import CLOCK, ENGINE, block, plan

from paceline.bench.conclude import conclude
from paceline.bench.plan import Arm
from paceline.bench.prediction import predict
from paceline.bench.records import AuditOutcome, Estimate, Metric
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
