"""SLO mode on the real scheduler, in virtual time: a step takes 0.1 s and 0.01 s for each token."""

import pytest
from harness import Driver, Options

from paceline.engine_ext.settings import PacingMode, PacingSettings, SloPrecedence, SloSettings

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def promise(
    milliseconds: int, delay: int = 60, precedence: SloPrecedence = SloPrecedence.PREFILL_DELAY
) -> PacingSettings:
    slo = SloSettings(
        time_per_output_token_milliseconds=milliseconds, max_prefill_delay_seconds=delay, precedence=precedence
    )
    return PacingSettings(mode=PacingMode.SLO, slo=slo)


def with_residents(pacing: PacingSettings, count: int, *, asynchronous: bool = False, taught: bool = True) -> Driver:
    """Start residents that never end; `taught` lets the step-time model see prefills first."""
    driver = Driver(Options(asynchronous=asynchronous, budget=128), pacing)
    for index in range(count):
        driver.add(f"resident{index}", 10, 100_000)
    driver.step(4)
    if taught:
        driver.add("lesson", 800, 1)
        while "lesson" not in driver.finished:
            driver.step()
        driver.step(20)
    return driver


def prefill_seconds(driver: Driver, name: str) -> float:
    start = driver.seconds
    while not driver.outputs[name]:
        driver.step()
        assert driver.seconds - start < 1_000, "the prefill never ended"
    return driver.seconds - start


@BOTH
def test_unreachable_promise_still_has_the_prefill_done_in_time(asynchronous: bool) -> None:
    driver = with_residents(promise(1, delay=120), 8, asynchronous=asynchronous)
    driver.add("newcomer", 5_000, 5)
    taken = prefill_seconds(driver, "newcomer")
    # Unpaced: 42 chunks of 120 tokens and 8 decoders at 1.38 s, 58 s. Held for as long as the delay allows.
    assert 60 < taken <= 120
    assert driver.scheduler.slo.report()["prefillsKept"] >= 1


def test_deadline_counts_with_the_limit_of_a_long_prefills_chunks() -> None:
    driver = Driver(Options(budget=1_024, long_prefill_tokens=16), promise(1, delay=100))
    driver.add("resident", 10, 100_000)
    driver.add("lesson", 800, 1)
    while "lesson" not in driver.finished:
        driver.step()
    driver.step(20)
    driver.add("newcomer", 4_000, 5)
    # 250 chunks of 16 tokens beside the resident at 0.27 s: 68 s, where four of 1,000 would take 41 s.
    assert 68 < prefill_seconds(driver, "newcomer") <= 100


def test_unreachable_promise_before_the_model_knows_anything() -> None:
    driver = with_residents(promise(1, delay=200), 8, taught=False)
    driver.add("newcomer", 5_000, 5)
    assert prefill_seconds(driver, "newcomer") <= 200


@BOTH
def test_reachable_promise_is_kept(asynchronous: bool) -> None:
    driver = with_residents(promise(300, delay=3_600), 4, asynchronous=asynchronous)
    resident = driver.requests["resident0"]
    driver.add("newcomer", 4_000, 5)
    start, seen = driver.seconds, len(driver.outputs["resident0"])
    saved = min(each.credit for each in driver.scheduler.slo.promise.residents.values())
    assert saved <= 16 * (1.38 - 0.14)  # no more than sixteen releases
    taken = prefill_seconds(driver, "newcomer")
    tokens = len(driver.outputs["resident0"]) - seen
    # Decode steps take 0.14 s and the 33 mixed ones 1.38 s: what was not saved up, decode steps pay at 0.16 s each.
    decodes = (33 * (1.38 - 0.3) - saved) / (0.3 - 0.14)
    assert (driver.seconds - start - saved) / tokens <= 0.300 * 1.02
    assert taken == pytest.approx(33 * 1.38 + decodes * 0.14, abs=2 * 1.38)
    assert resident.num_preemptions == 0


def test_residents_first_bounds_every_chunk_by_the_largest_interval() -> None:
    driver = with_residents(promise(1, precedence=SloPrecedence.OUTPUT_TOKEN_TIME), 2)
    driver.add("newcomer", 200, 5)
    before = max(n for n, step in enumerate(driver.steps, 1) if step.is_mixed)
    driver.step(2 * 1_024 + 10)
    assert [number - before for number in driver.chunk_steps("newcomer")] == [1_024, 2_048]


@BOTH
def test_change_from_fixed_to_promise_keeps_residents(asynchronous: bool) -> None:
    driver = with_residents(promise(500), 2, asynchronous=asynchronous)
    driver.set_pacing(PacingSettings(mode=PacingMode.FIXED, interval=16))
    driver.add("newcomer", 1_000, 5)
    driver.step(20)
    driver.set_pacing(promise(500))
    prefill_seconds(driver, "newcomer")
    driver.assert_whole("lesson")


def test_prompt_without_a_slot_hurries_nobody() -> None:
    driver = Driver(Options(budget=128, max_seqs=3, policy="priority"), promise(400, delay=60))
    for index in range(3):
        driver.add(f"resident{index}", 10, 100_000)
    driver.step(4)
    driver.add("low", 2_000, 5, priority=9)
    driver.step(600)
    assert driver.seconds > 60
    assert driver.chunks("low") == []
    driver.abort("resident0")
    driver.add("high", 2_000, 5, priority=1)
    while not driver.outputs["high"]:
        driver.step()
        assert not driver.scheduler.slo.escaping


def test_deadline_is_kept_though_each_chunk_costs_more_than_the_one_before() -> None:
    driver = Driver(Options(budget=128), promise(1, delay=600), pair_seconds=1e-5)
    for index in range(8):
        driver.add(f"resident{index}", 10, 100_000)
    driver.add("lesson", 800, 1)
    while "lesson" not in driver.finished:
        driver.step()
    driver.step(20)
    driver.add("newcomer", 5_000, 5)
    # 42 chunks of 1.38 s and 12.5 million pairs, 125 s: three times what its first chunks let expect.
    taken = prefill_seconds(driver, "newcomer")
    assert 183 * 0.95 < taken <= 600
    assert driver.scheduler.slo.report()["prefillsBroken"] == 0


def test_what_the_deadline_allows_is_kept_for_the_first_where_it_can_not_be_for_all() -> None:
    driver = with_residents(promise(5_000, delay=60), 1)
    kept = driver.scheduler.slo.report()["prefillsKept"]
    for index in range(4):
        driver.add(f"newcomer{index}", 3_000, 1)
    while driver.unfinished != {"resident0"}:
        driver.step()
    # Each prefill takes 24 steps of 1.28 s, 31 s: by turns all would be done after about 120 s.
    report = driver.scheduler.slo.report()
    assert report["prefillsKept"] == kept + 1
    assert report["prefillsBroken"] == 3


def test_prompt_given_up_after_its_deadline_is_counted_as_broken() -> None:
    driver = with_residents(promise(1, delay=30, precedence=SloPrecedence.OUTPUT_TOKEN_TIME), 2)
    before = driver.scheduler.slo.report()["prefillsBroken"]
    for name in ("patient", "hasty"):
        driver.add(name, 2_000, 5)
    driver.step(20)
    driver.abort("hasty")
    assert driver.scheduler.slo.report()["prefillsBroken"] == before
    start = driver.seconds
    while driver.seconds - start <= 30:
        driver.step()
    driver.abort("patient")
    assert driver.scheduler.slo.report()["prefillsBroken"] == before + 1


def test_prefill_is_judged_when_its_last_chunk_is_computed() -> None:
    driver = Driver(Options(budget=128), promise(500, delay=10))
    driver.add("alone", 1_000, 5)
    # Seven chunks of 1.38 s, and one of 1.14 s that starts in time and ends 0.8 s late.
    driver.step(7)
    assert driver.seconds == pytest.approx(9.66)
    driver.step(2)
    report = driver.scheduler.slo.report()
    assert (report["prefillsKept"], report["prefillsBroken"]) == (0, 1)


@BOTH
def test_preemption_of_a_decoder_is_no_prefill_to_judge_or_to_hurry(asynchronous: bool) -> None:
    options = Options(asynchronous=asynchronous, budget=128, blocks=1 + 40)
    driver = Driver(options, promise(500, delay=5))
    for name in ("first", "second"):
        driver.add(name, 100, 400)
    while not driver.steps or not driver.steps[-1].preempted:
        driver.step()
    assert driver.seconds > 5
    while "first" not in driver.finished:
        driver.step()
        assert not driver.scheduler.slo.escaping
    driver.run_until_done(limit=2_000)
    report = driver.scheduler.slo.report()
    assert (report["prefillsKept"], report["prefillsBroken"]) == (2, 0)
