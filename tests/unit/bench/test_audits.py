from typing import Any

import pytest
from bench_records import PLANNED_TOKENS, PROMPT, block, counters, plan

from paceline.bench.audits import arm_audits
from paceline.bench.records import AuditOutcome, AuditResult, BlockRecord, ClientLag, PrefillSteps

FAILED, PASSED, NOT_APPLICABLE = AuditOutcome.FAILED, AuditOutcome.PASSED, AuditOutcome.NOT_APPLICABLE


def audit(name: str, blocks: list[BlockRecord], baseline: list[BlockRecord] | None = None) -> AuditResult:
    found = arm_audits(plan(), "n4", blocks, baseline or [block(number=0), block(number=1)])
    return next(result for result in found if result.name == name)


def test_good_blocks_pass_every_audit() -> None:
    found = arm_audits(plan(), "n4", [block("n4", 0), block("n4", 1)], [block(number=0), block(number=1)])
    assert {result.outcome for result in found} == {PASSED}
    assert len({result.name for result in found}) == 9
    assert {result.arm for result in found} == {"n4"}


@pytest.mark.parametrize(
    ("name", "fields", "outcome", "said"),
    [
        ("completions", {"completed_requests": 2}, FAILED, "5 of 6 planned requests"),
        ("completions", {"problems": ("resident 1 ended",)}, FAILED, "block 1: resident 1 ended"),
        ("countersIntact", {"counters": counters(reset=True)}, FAILED, "it was restarted"),
        ("countersIntact", {"counters": None}, NOT_APPLICABLE, "not read"),
        ("engineAlone", {"counters": counters(prompt_tokens=PLANNED_TOKENS + 7)}, FAILED, "+7 prompt tokens"),
        ("engineAlone", {"counters": counters(prompt_tokens=None)}, NOT_APPLICABLE, "does not count"),
        ("coldPrompt", {"injected_cached_tokens": 256}, FAILED, "256 tokens of an injected prompt"),
        ("coldPrompt", {"injected_cached_tokens": None}, NOT_APPLICABLE, "does not tell"),
        ("prefixCacheHits", {"counters": counters(prefix_cache_hits=64)}, FAILED, "64 prompt tokens hit"),
        ("prefixCacheHits", {"counters": counters(prefix_cache_hits=None)}, NOT_APPLICABLE, "does not count"),
        ("preemptions", {"counters": counters(preemptions=2)}, FAILED, "2 requests were preempted"),
        ("preemptions", {"counters": counters(preemptions=None)}, NOT_APPLICABLE, "does not count"),
        ("prefillScheduled", {"prefill_steps": None}, NOT_APPLICABLE, "admin port"),
        (
            "prefillScheduled",
            {"prefill_steps": PrefillSteps(complete=False, chunks=1, tokens=9, steps=1)},
            NOT_APPLICABLE,
            "no longer held",
        ),
        (
            "prefillScheduled",
            {"prefill_steps": PrefillSteps(complete=True, chunks=1, tokens=PROMPT + 1, steps=1)},
            FAILED,
            f"scheduled {PROMPT + 1} of the injected prompt's {PROMPT}",
        ),
        (
            "settingsHeld",
            {"prefill_steps": PrefillSteps(complete=True, chunks=8, tokens=PROMPT, steps=8, revisions=(1, 6))},
            FAILED,
            "ran settings of revision 6 instead of the arm's 1",
        ),
        (
            "settingsHeld",
            {"prefill_steps": PrefillSteps(complete=True, chunks=8, tokens=PROMPT, steps=8)},
            NOT_APPLICABLE,
            "were not read",
        ),
        ("settingsHeld", {"prefill_steps": None}, NOT_APPLICABLE, "were not read"),
        ("clientLag", {"lag": ClientLag(max_loop_lag_seconds=0.251)}, FAILED, "late by 251 ms"),
        ("clientLag", {"lag": ClientLag(max_send_lag_seconds=0.5)}, FAILED, "within 500 ms"),
        ("clientLag", {"lag": ClientLag(max_loop_lag_seconds=0.25)}, PASSED, "late by 250 ms"),
    ],
)
def test_one_bad_block_is_enough(name: str, fields: dict[str, Any], outcome: AuditOutcome, said: str) -> None:
    found = audit(name, [block("n4", 0), block("n4", 1, **fields)])
    assert found.outcome is outcome
    assert said in found.message


def test_a_block_that_never_ran_is_missed() -> None:
    assert audit("completions", [block("n4", 0)]).outcome is FAILED
    nothing = arm_audits(plan(), "n4", [], [])
    assert {result.outcome for result in nothing} == {FAILED, NOT_APPLICABLE, PASSED}
    assert [result.name for result in nothing if result.outcome is PASSED] == ["clientLag"]


def test_pacing_must_not_lower_the_hit_rate() -> None:
    hitting = [block("off", number, counters=counters(prefix_cache_hits=640)) for number in (0, 1)]
    found = audit("prefixCacheHits", [block("n4", 0), block("n4", 1)], baseline=hitting)
    assert found.outcome is FAILED
    assert found.message == "the hit rate 0.0% is lower than the baseline's 50.0%"
