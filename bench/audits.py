"""Whether the numbers of a run may be believed: one pure function for each check.

What could not be seen is `NotApplicable` with the reason, never a pass.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import AuditOutcome, AuditResult, BlockRecord

COMPLETIONS: Final = "completions"
COUNTERS_INTACT: Final = "countersIntact"
ENGINE_ALONE: Final = "engineAlone"
COLD_PROMPT: Final = "coldPrompt"
PREFIX_CACHE_HITS: Final = "prefixCacheHits"
PREEMPTIONS: Final = "preemptions"
PREFILL_SCHEDULED: Final = "prefillScheduled"
SETTINGS_HELD: Final = "settingsHeld"
CLIENT_LAG: Final = "clientLag"
ENGINE_REPEATS: Final = "engineRepeats"
OUTPUTS_EQUAL: Final = "outputsEqual"
PACING_FORMULA: Final = "pacingFormula"
STEADY_MACHINE: Final = "steadyMachine"
CONTROL_ARM: Final = "controlArm"

INVALIDATING: Final = frozenset(
    {COMPLETIONS, COUNTERS_INTACT, ENGINE_ALONE, COLD_PROMPT, PREFILL_SCHEDULED, SETTINGS_HELD}
)
"""Audits whose failure makes an arm's numbers mean nothing; the others cast doubt, and are shown beside the numbers."""

Blocks = Sequence[BlockRecord]


def arm_audits(plan: ExperimentPlan, arm: str, blocks: Blocks, baseline: Blocks) -> list[AuditResult]:
    """Return the checks of one arm's measured blocks; `baseline` is the first arm's."""
    return [
        _completions(plan, arm, blocks),
        _counters_intact(arm, blocks),
        _engine_alone(plan, arm, blocks),
        _cold_prompt(arm, blocks),
        _prefix_cache_hits(arm, blocks, baseline),
        _preemptions(arm, blocks),
        _prefill_scheduled(plan, arm, blocks),
        _settings_held(arm, blocks),
        _client_lag(plan, arm, blocks),
    ]


def passed(name: str, message: str, arm: str | None = None) -> AuditResult:
    """Return a passed check."""
    return AuditResult(name=name, outcome=AuditOutcome.PASSED, message=message, arm=arm)


def failed(name: str, message: str, arm: str | None = None) -> AuditResult:
    """Return a failed check."""
    return AuditResult(name=name, outcome=AuditOutcome.FAILED, message=message, arm=arm)


def not_applicable(name: str, message: str, arm: str | None = None) -> AuditResult:
    """Return a check that could not be made."""
    return AuditResult(name=name, outcome=AuditOutcome.NOT_APPLICABLE, message=message, arm=arm)


def _completions(plan: ExperimentPlan, arm: str, blocks: Blocks) -> AuditResult:
    planned = plan.blocks * (plan.workload.residents + 1)
    done = sum(block.completed_requests for block in blocks)
    faults = [f"block {block.block}: {problem}" for block in blocks for problem in block.problems]
    if done < planned:
        faults.append(f"{done} of {planned} planned requests were completed")
    if faults:
        return failed(COMPLETIONS, "; ".join(faults), arm)
    return passed(COMPLETIONS, f"all {planned} planned requests were completed", arm)


def _counters_intact(arm: str, blocks: Blocks) -> AuditResult:
    missing = [block.block for block in blocks if block.counters is None]
    if missing or not blocks:
        return not_applicable(COUNTERS_INTACT, "the engine's metrics were not read around every block", arm)
    if any(block.counters.reset for block in blocks if block.counters):
        return failed(COUNTERS_INTACT, "the engine's counters started anew during a block: it was restarted", arm)
    return passed(COUNTERS_INTACT, "the engine's counters ran on through every block", arm)


def _engine_alone(plan: ExperimentPlan, arm: str, blocks: Blocks) -> AuditResult:
    work = plan.workload
    planned = work.prompt_tokens + work.residents * work.resident_prompt_tokens
    seen = _counted(blocks, lambda block: block.counters.prompt_tokens if block.counters else None)
    if seen is None:
        return not_applicable(ENGINE_ALONE, "the engine does not count prompt tokens", arm)
    extra = [tokens - planned for tokens in seen]
    if any(extra):
        return failed(
            ENGINE_ALONE,
            f"the engine took {max(extra, key=abs):+.0f} prompt tokens beside those planned for a block: keep other "
            f"traffic away and run again",
            arm,
        )
    return passed(ENGINE_ALONE, f"the engine took the {planned} planned prompt tokens in each block, and no more", arm)


def _cold_prompt(arm: str, blocks: Blocks) -> AuditResult:
    cached = _counted(blocks, lambda block: block.injected_cached_tokens)
    if cached is None:
        return not_applicable(COLD_PROMPT, "the engine does not tell how many prompt tokens were cached", arm)
    if any(cached):
        return failed(COLD_PROMPT, f"{max(cached):.0f} tokens of an injected prompt came from the prefix cache", arm)
    return passed(COLD_PROMPT, "no token of an injected prompt came from the prefix cache", arm)


def _prefix_cache_hits(arm: str, blocks: Blocks, baseline: Blocks) -> AuditResult:
    """Every prompt of the workload is new, so no hit is planned; and pacing must never lower the hit rate."""
    hits = _counted(blocks, lambda block: block.counters.prefix_cache_hits if block.counters else None)
    rate, unpaced = _hit_rate(blocks), _hit_rate(baseline)
    if hits is None or rate is None or unpaced is None:
        return not_applicable(PREFIX_CACHE_HITS, "the engine does not count prefix-cache hits", arm)
    if rate < unpaced:
        return failed(PREFIX_CACHE_HITS, f"the hit rate {rate:.1%} is lower than the baseline's {unpaced:.1%}", arm)
    if any(hits):
        return failed(PREFIX_CACHE_HITS, f"{sum(hits):.0f} prompt tokens hit the prefix cache, and none should", arm)
    return passed(PREFIX_CACHE_HITS, "no prefix-cache hits, as planned", arm)


def _preemptions(arm: str, blocks: Blocks) -> AuditResult:
    counts = _counted(blocks, lambda block: block.counters.preemptions if block.counters else None)
    if counts is None:
        return not_applicable(PREEMPTIONS, "the engine does not count preemptions", arm)
    if any(counts):
        return failed(
            PREEMPTIONS,
            f"{sum(counts):.0f} requests were preempted: give the engine a larger KV cache or use a smaller workload",
            arm,
        )
    return passed(PREEMPTIONS, "no request was preempted", arm)


def _prefill_scheduled(plan: ExperimentPlan, arm: str, blocks: Blocks) -> AuditResult:
    steps = [block.prefill_steps for block in blocks if block.prefill_steps is not None]
    if len(steps) < len(blocks) or not blocks:
        return not_applicable(PREFILL_SCHEDULED, "the engine's admin port, which tells its steps, was not read", arm)
    planned = plan.workload.prompt_tokens
    if any(step.tokens != planned for step in steps if step.complete):
        seen = next(step.tokens for step in steps if step.complete and step.tokens != planned)
        return failed(PREFILL_SCHEDULED, f"the engine scheduled {seen} of the injected prompt's {planned} tokens", arm)
    if not all(step.complete for step in steps):
        return not_applicable(PREFILL_SCHEDULED, "the engine no longer held every step of a prefill", arm)
    chunks = sorted({step.chunks for step in steps})
    return passed(
        PREFILL_SCHEDULED, f"all {planned} tokens were scheduled, in {' or '.join(map(str, chunks))} chunks", arm
    )


def _settings_held(arm: str, blocks: Blocks) -> AuditResult:
    ran = [(block.revision, block.prefill_steps.revisions) for block in blocks if block.prefill_steps is not None]
    if not ran or len(ran) < len(blocks) or not all(wanted is not None and seen for wanted, seen in ran):
        return not_applicable(SETTINGS_HELD, "the engine's steps, which tell the settings they ran, were not read", arm)
    for wanted, seen in ran:
        if seen != (wanted,):
            others = ", ".join(str(revision) for revision in seen if revision != wanted)
            return failed(
                SETTINGS_HELD,
                f"steps of the prefill ran settings of revision {others} instead of the arm's {wanted}: somebody else "
                f"changed the pacing meanwhile; keep others away and run again",
                arm,
            )
    return passed(SETTINGS_HELD, "every step of a prefill ran the arm's settings", arm)


def _client_lag(plan: ExperimentPlan, arm: str, blocks: Blocks) -> AuditResult:
    limit = plan.max_client_lag_milliseconds / 1_000
    loop = max((block.lag.max_loop_lag_seconds for block in blocks), default=0.0)
    send = max((block.lag.max_send_lag_seconds for block in blocks), default=0.0)
    message = f"the client was late by {loop * 1_000:.0f} ms at most, and sent requests within {send * 1_000:.0f} ms"
    if max(loop, send) > limit:
        return failed(
            CLIENT_LAG,
            f"{message}: more than maxClientLagMilliseconds {plan.max_client_lag_milliseconds}, so the client's own "
            f"delay is in the figures; give it a free core",
            arm,
        )
    return passed(CLIENT_LAG, message, arm)


def _counted(blocks: Iterable[BlockRecord], value: Callable[[BlockRecord], float | None]) -> list[float] | None:
    """Return a value of every block; None where a block lacks it, or there is no block."""
    values = [value(block) for block in blocks]
    known = [number for number in values if number is not None]
    return known if known and len(known) == len(values) else None


def _hit_rate(blocks: Blocks) -> float | None:
    queries = _counted(blocks, lambda block: block.counters.prefix_cache_queries if block.counters else None)
    hits = _counted(blocks, lambda block: block.counters.prefix_cache_hits if block.counters else None)
    if queries is None or hits is None:
        return None
    return sum(hits) / sum(queries) if sum(queries) else 0.0
