"""The decisions of SLO mode, with a step-time model that has learned an engine of round numbers.

A step takes 0.1 s, and 1 s more with a chunk of 1000 tokens.
"""

from collections.abc import Sequence

import pytest

from paceline.engine_ext.pacing.deadline import Backlog
from paceline.engine_ext.pacing.slo import Prospect, SloPolicy
from paceline.engine_ext.pacing.step_time import StepLoad, StepTimeModel, decode_load
from paceline.engine_ext.settings import MAX_INTERVAL_STEPS, PacingMode, PacingSettings, SloPrecedence, SloSettings


def policy(
    milliseconds: int, *, ready: bool = True, precedence: SloPrecedence = SloPrecedence.PREFILL_DELAY
) -> SloPolicy:
    model = StepTimeModel()
    for _ in range(3 if ready else 0):
        model.observe(decode_load(1), 0.1)
        model.observe(StepLoad(1, 1_000, 0.0), 1.1)
    slo = SloSettings(time_per_output_token_milliseconds=milliseconds, precedence=precedence)
    return SloPolicy.build(PacingSettings(mode=PacingMode.SLO, interval=6, slo=slo), model)


def prospect(
    now: float, *, backlog: Sequence[Backlog] = (Backlog(0.0, 3_000),), in_flight: Sequence[StepLoad] = ()
) -> Prospect:
    return Prospect(now, {"resident": len(in_flight) + 1}, backlog, 1_000, 0, in_flight, busy_since=now)


def test_chunk_is_released_once_enough_credit_is_saved() -> None:
    slo = policy(300)
    # Each decode step saves 0.2 s of credit; a mixed step of 1.1 s takes 0.8 s more than the promise allows.
    released = []
    for step in range(12):
        now = 0.1 * step
        slo.promise.on_tokens("resident", 1, now, slo.credit_cap)
        released.append(slo.gap_steps(prospect(now)) == 1)
    assert released == [False] * 4 + [True] * 8


def test_promise_easier_than_a_mixed_step_never_holds() -> None:
    slo = policy(1_200)
    slo.promise.on_tokens("resident", 1, 0.0, slo.credit_cap)
    assert slo.gap_steps(prospect(0.0)) == 1
    assert slo.slack_seconds == pytest.approx(0.1, abs=0.01)


def test_unreachable_promise_holds_until_the_deadline_nears() -> None:
    slo = policy(1)
    slo.promise.on_tokens("resident", 1, 0.0, slo.credit_cap)
    assert slo.gap_steps(prospect(50.0, backlog=[Backlog(50.0, 3_000)])) == MAX_INTERVAL_STEPS
    # Three chunks and one more at 1.1 s, with a quarter on top: 5.5 s before the end of 60 s.
    assert slo.gap_steps(prospect(54.4, backlog=[Backlog(54.4, 3_000)])) == MAX_INTERVAL_STEPS
    assert slo.gap_steps(prospect(54.6, backlog=[Backlog(54.6, 3_000)])) == 1


def test_residents_come_first_where_the_profile_says_so() -> None:
    slo = policy(1, precedence=SloPrecedence.OUTPUT_TOKEN_TIME)
    slo.promise.on_tokens("resident", 1, 0.0, slo.credit_cap)
    assert slo.gap_steps(prospect(100.0, backlog=[Backlog(100.0, 3_000)])) == MAX_INTERVAL_STEPS


def test_steps_in_flight_delay_the_next_one() -> None:
    slo = policy(600)
    slo.promise.on_tokens("resident", 1, 0.0, slo.credit_cap)
    # Alone a mixed step would end 1.1 s after the last token, 0.5 s late; behind a decode step in flight it brings
    # the second of two tokens, due after 1.2 s, at 1.2 s.
    assert slo.gap_steps(prospect(0.0)) == MAX_INTERVAL_STEPS
    slo.gap_steps(prospect(0.0, in_flight=[decode_load(1)]))
    assert slo.slack_seconds == pytest.approx(0.0, abs=0.01)


def test_fixed_interval_until_the_model_is_ready() -> None:
    slo = policy(300, ready=False)
    assert slo.gap_steps(prospect(0.0)) == 6
    assert slo.slack_seconds is None
    assert slo.gap_steps(prospect(30.0, backlog=[Backlog(30.0, 10)])) == 1


def test_slack_is_not_told_while_no_resident_has_an_account() -> None:
    slo = policy(300)
    assert slo.gap_steps(prospect(0.0)) == 1
    assert slo.report()["slackSeconds"] is None


def test_prefill_ends_with_the_first_output_after_its_last_chunk() -> None:
    slo = policy(300)
    slo.on_last_chunk("newcomer", arrived=10.0)
    slo.on_output("resident", 1, 70.0, finished=False)
    assert (slo.prefills_kept, slo.prefills_broken) == (0, 0)
    slo.on_output("newcomer", 1, 70.1, finished=False)
    slo.on_output("newcomer", 1, 200.0, finished=True)
    assert (slo.prefills_kept, slo.prefills_broken) == (0, 1)


def test_what_is_kept_of_aborted_requests_is_bounded() -> None:
    slo = policy(300)
    for number in range(1_000):
        slo.on_last_chunk(f"aborted{number}", arrived=0.0)
        slo.forget_all_but({"resident"})
    assert len(slo.ending) <= 64


def test_new_settings_go_on_from_what_was_kept() -> None:
    slo = policy(300)
    slo.promise.on_tokens("resident", 1, 0.0, slo.credit_cap)
    slo.on_prefill_done(70.0)
    patient = SloSettings(time_per_output_token_milliseconds=300, max_prefill_delay_seconds=80)
    slo.follow(PacingSettings(mode=PacingMode.SLO, interval=9, slo=patient))
    slo.on_prefill_done(70.0)
    assert (slo.prefills_kept, slo.prefills_broken, slo.fallback_steps) == (1, 1, 9)
    assert "resident" in slo.promise.residents


def test_another_pace_starts_the_residents_accounts_anew() -> None:
    slo = policy(300)
    slo.promise.on_tokens("resident", 1, 0.0, slo.credit_cap)
    slo.follow(PacingSettings(mode=PacingMode.SLO, slo=SloSettings(time_per_output_token_milliseconds=50)))
    assert slo.promise.seconds == 0.05
    assert not slo.promise.residents


@pytest.mark.parametrize(("waited", "answered", "broken"), [(60.1, False, 1), (59.9, False, 0), (60.1, True, 0)])
def test_an_aborted_prompt_has_its_promise_broken_once_it_waited_too_long(
    waited: float, answered: bool, broken: int
) -> None:
    slo = policy(300)
    slo.on_aborted("gone", waited, answered=answered)
    assert (slo.prefills_kept, slo.prefills_broken) == (0, broken)


def test_an_aborted_resident_is_judged_by_the_tokens_it_got() -> None:
    slo = policy(300)
    for name, gap in (("slow", 0.4), ("fast", 0.2)):
        for index in range(3):
            slo.on_output(name, 1, index * gap, finished=False)
        slo.on_aborted(name, 5.0, answered=True)
    assert (slo.promise.kept, slo.promise.broken) == (1, 1)
    assert not slo.promise.residents


def test_prefills_are_judged_by_their_delay() -> None:
    slo = policy(300)
    slo.on_prefill_done(60.0)
    slo.on_prefill_done(60.1)
    report = slo.report()
    assert (report["prefillsKept"], report["prefillsBroken"]) == (1, 1)
