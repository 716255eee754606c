"""Made-up records with round numbers, from which tests work out what must follow."""

from typing import Any

from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.records import (
    BlockRecord,
    ClientLag,
    ClockOrigin,
    CounterDelta,
    EngineFingerprint,
    Metric,
    PrefillSteps,
)
from paceline.engine_ext.settings import PacingMode, PacingSettings

PROMPT, RESIDENT_PROMPT = 1_024, 128
PLANNED_TOKENS = PROMPT + 2 * RESIDENT_PROMPT
CLOCK = ClockOrigin(monotonic_seconds=1_000.0, wall_seconds=1_700_000_000.0)
ENGINE = EngineFingerprint(version="0.32.0", model="tiny", max_model_len=32_768)


def plan(*, control_arm: bool = False, blocks: int = 2, **fields: Any) -> ExperimentPlan:
    arms = (Arm(name="off"), Arm(name="n4", pacing=PacingSettings(mode=PacingMode.FIXED, interval=4)))
    return ExperimentPlan(
        name="demo",
        arms=arms,
        workload=MixedPhase(injected_prompt_tokens=PROMPT, resident_prompt_tokens=RESIDENT_PROMPT),
        blocks=blocks,
        control_arm=control_arm,
        **fields,
    )


def counters(**moved: Any) -> CounterDelta:
    nothing = {"preemptions": 0, "prefix_cache_queries": PLANNED_TOKENS, "prefix_cache_hits": 0}
    return CounterDelta(**{**nothing, "prompt_tokens": PLANNED_TOKENS, "generation_tokens": 500, **moved})


def block(arm: str = "off", number: int = 0, during: float = 2.0, ttft: float = 10.0, **fields: Any) -> BlockRecord:
    """A good block: residents at 50 tok/s before, `during` beside the prefill, which takes `ttft` seconds."""
    start = 100.0 * number
    good: dict[str, Any] = {
        "position": number,
        "revision": 1,
        "started_seconds": start,
        "started_wall_seconds": CLOCK.wall_seconds + start,
        "steady_seconds": start + 1,
        "injected_seconds": start + 4,
        "first_token_seconds": start + 4 + ttft,
        "ended_seconds": start + 5 + ttft,
        "injected_prompt_tokens": PROMPT,
        "planned_requests": 3,
        "completed_requests": 3,
        "per_resident_before": (50.0, 50.0),
        "per_resident_during": (during, during),
        "metrics": {
            Metric.RESIDENT_RATE_BEFORE: 50.0,
            Metric.RESIDENT_RATE_DURING: during,
            Metric.TIME_TO_FIRST_TOKEN: ttft,
            Metric.ADMISSION_TO_FIRST_TOKEN: ttft - 0.5,
            Metric.LONGEST_CHUNK_GAP_DURING: 0.5,
            Metric.LONGEST_TOKEN_GAP_DURING: 0.5,
        },
        "counters": counters(),
        "injected_cached_tokens": 0,
        "prefill_steps": PrefillSteps(complete=True, chunks=8, tokens=PROMPT, steps=8, revisions=(1,)),
        "lag": ClientLag(max_loop_lag_seconds=0.004, max_send_lag_seconds=0.002),
    }
    return BlockRecord(arm=arm, block=number, **{**good, **fields})
