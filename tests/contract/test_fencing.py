"""Live settings inside the scheduler: fences, and that a refused change changes nothing."""

import json
from types import SimpleNamespace

import pytest
from harness import Driver, fixed

from paceline.engine_ext import utility
from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings, Verdict


def settings(epoch: int, revision: int, interval: int) -> LiveSettings:
    return LiveSettings(epoch=epoch, revision=revision, pacing=PacingSettings(mode=PacingMode.FIXED, interval=interval))


def test_older_and_conflicting_settings_change_nothing() -> None:
    scheduler = Driver().scheduler
    assert scheduler.apply_settings(settings(2, 5, 4)).verdict is Verdict.APPLY
    for incoming, verdict in (
        (settings(2, 4, 8), Verdict.STALE),
        (settings(1, 9, 8), Verdict.STALE),
        (settings(2, 5, 8), Verdict.CONFLICT),
        (settings(2, 5, 4), Verdict.SAME),
    ):
        applied = scheduler.apply_settings(incoming)
        assert applied.verdict is verdict
        assert scheduler.live == settings(2, 5, 4)
    assert scheduler.apply_settings(settings(3, 0, 8)).verdict is Verdict.APPLY
    assert scheduler.step_log.settings_changes == 3  # with the one that the driver made


def test_a_change_counts_from_the_next_step() -> None:
    driver = Driver(pacing=fixed(8))
    driver.add("resident", 10)
    driver.step(2)
    driver.add("newcomer", 300)
    driver.step(3)
    core = SimpleNamespace(scheduler=driver.scheduler, vllm_config=driver.scheduler.vllm_config)
    answer = utility.apply(core, settings(0, 9, 2).model_dump_json(by_alias=True, exclude_none=True))
    assert (answer["verdict"], answer["revision"], answer["step"]) == ("Apply", 9, 5)
    driver.step(2)
    records = utility.steps(core, 4, 100)["records"]
    assert [(r["step"], r["revision"], r["kind"]) for r in records] == [
        (5, 1, "decode"),
        (6, 9, "mixed"),
        (7, 9, "decode"),
    ]
    json.dumps(answer)


def test_records_and_counters_tell_what_was_scheduled() -> None:
    driver = Driver(pacing=fixed(4))
    driver.add("resident", 10)
    driver.step(2)
    driver.add("newcomer", 100)
    driver.step(5)
    core = SimpleNamespace(scheduler=driver.scheduler)
    answer = utility.steps(core, None, 3)
    assert [(r["step"], r["kind"], r["decoders"], r["prefillTokens"], r["decodeTokens"], r["deferred"], r["scheduled"])
            for r in answer["records"]] == [
        (5, "decode", 1, 0, 1, 1, {"resident": 1}),
        (6, "decode", 1, 0, 1, 1, {"resident": 1}),
        (7, "mixed", 1, 37, 1, 0, {"resident": 1, "newcomer": 37}),
    ]  # fmt: skip
    counters = answer["counters"]
    assert {
        kind: (counters[kind]["steps"], counters[kind]["tokens"]) for kind in ("decode", "mixed", "prefill", "empty")
    } == {
        "decode": (4, 4),
        "mixed": (2, 102),
        "prefill": (1, 10),
        "empty": (0, 0),
    }
    assert counters["deferredPrefillSteps"] == 3
    # In virtual time: 0.1 s and 0.01 s a token.
    assert counters["mixed"]["seconds"] == pytest.approx(2 * 0.1 + 102 * 0.01)


def test_foreign_scheduler_is_named() -> None:
    driver = Driver(stock=True)
    core = SimpleNamespace(scheduler=driver.scheduler, vllm_config=driver.scheduler.vllm_config)
    answer = utility.apply(core, "{}")
    assert answer["verdict"] is None
    assert not answer["compatible"]
    assert "vllm.v1.core.sched.scheduler.Scheduler" in answer["reasons"][0]
