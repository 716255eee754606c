"""Whole runs against a fake engine on real sockets."""

import asyncio
import json
import time

import pytest
from bench_fakes import Applier, FakeEngine, Keeper

from paceline.bench.capacity import PlanError
from paceline.bench.engine import EngineAddress, EngineClient, EngineError
from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.protocol import ProgressEvent, ProgressKind
from paceline.bench.records import AuditOutcome, ExperimentResult, Metric, RequestState, Role, Verdict
from paceline.bench.runner import EngineLimits, run_experiment
from paceline.engine_ext.settings import PacingMode, PacingSettings

OFF = Arm(name="off")
N4 = Arm(name="n4", pacing=PacingSettings(mode=PacingMode.FIXED, interval=4))


def plan(**fields: object) -> ExperimentPlan:
    work = MixedPhase(
        resident_prompt_tokens=32, injected_prompt_tokens=1_024, injected_output_tokens=4, before_seconds=0.05
    )
    given = {"name": "x", "arms": (OFF, N4), "workload": work, "blocks": 1, "control_arm": False}
    # The machine that runs the tests may be busy: only the test of a slow client minds.
    return ExperimentPlan.model_validate({**given, "max_client_lag_milliseconds": 60_000, **fields})


async def run(
    fake: FakeEngine,
    given: ExperimentPlan | None = None,
    sink: Keeper | None = None,
    limits: EngineLimits | None = None,
) -> tuple[ExperimentResult, Keeper]:
    keeper = sink or Keeper()
    async with fake.serve() as url, EngineClient(EngineAddress(url)) as client:
        return await run_experiment(given or plan(), client, Applier(fake), keeper, limits), keeper


def audit(result: ExperimentResult, name: str, arm: str | None = "off") -> AuditOutcome:
    return next(each.outcome for each in result.audits if (each.name, each.arm) == (name, arm))


async def test_a_whole_run_hands_over_every_request_and_block() -> None:
    result, keeper = await run(FakeEngine(), plan(blocks=2))
    order = [(block.arm, block.block, block.warm_up) for block in keeper.blocks]
    assert order[0] == ("off", 0, True)
    assert sorted(order[1:]) == [("n4", 0, False), ("n4", 1, False), ("off", 0, False), ("off", 1, False)]
    assert len(keeper.requests) == 5 * 3
    assert {record.state for record in keeper.requests if record.role is Role.RESIDENT} == {RequestState.ENDED_BY_PLAN}
    assert {record.state for record in keeper.requests if record.role is Role.INJECTED} == {RequestState.FINISHED}
    assert all(block.problems == () and block.completed_requests == 3 for block in keeper.blocks)
    assert all(arm.valid for arm in result.arms)

    block = keeper.blocks[1]
    assert block.steady_seconds is not None
    assert block.injected_seconds is not None
    assert block.first_token_seconds is not None
    assert block.started_seconds < block.steady_seconds < block.injected_seconds < block.first_token_seconds
    assert block.first_token_seconds < block.ended_seconds
    assert block.metrics[Metric.ADMISSION_TO_FIRST_TOKEN] == 0.5  # as the engine's histogram says
    assert len(block.per_resident_during) == 2
    assert [block.revision for block in keeper.blocks] == [1, 2, 3, 4, 5]
    assert block.counters is not None
    assert block.counters.prompt_tokens == 1_024 + 2 * 32  # summed over two engine labels


async def test_the_moments_of_a_run_are_told_in_order() -> None:
    _, keeper = await run(FakeEngine(), plan(arms=(OFF,), warm_up_blocks=0))
    assert [event.kind for event in keeper.events] == [
        ProgressKind.RUN_STARTED,
        ProgressKind.SETTINGS_APPLIED,
        ProgressKind.BLOCK_STARTED,
        ProgressKind.RESIDENTS_STEADY,
        ProgressKind.PREFILL_INJECTED,
        ProgressKind.FIRST_TOKEN,
        ProgressKind.BLOCK_FINISHED,
        ProgressKind.RUN_FINISHED,
    ]
    assert [event.position for event in keeper.events] == [0] * 7 + [1]  # blocks that are done
    assert {event.total for event in keeper.events} == {1}


async def test_arms_share_their_prompts_and_never_the_cache() -> None:
    fake = FakeEngine()
    result, keeper = await run(fake, plan(control_arm=True))
    assert len(set(fake.started)) == len(fake.started)
    outputs = {record.output_token_ids for record in keeper.requests if record.role is Role.INJECTED}
    assert len(outputs) == 1
    assert fake.counters["vllm:prefix_cache_hits"] == 0
    assert audit(result, "outputsEqual", "n4") is AuditOutcome.PASSED
    assert audit(result, "engineRepeats", None) is AuditOutcome.PASSED
    assert audit(result, "coldPrompt") is AuditOutcome.PASSED


async def test_a_plan_that_gives_a_time_is_sized_first() -> None:
    work = MixedPhase(
        resident_prompt_tokens=32, target_prefill_seconds=60.0, injected_output_tokens=4, before_seconds=0.05
    )
    result, keeper = await run(FakeEngine(), plan(arms=(OFF,), workload=work, warm_up_blocks=0))
    kinds = [event.kind for event in keeper.events]
    assert kinds[:2] == [ProgressKind.RUN_STARTED, ProgressKind.PROMPT_SIZED]
    assert "the longest that the engine holds" in keeper.events[1].message
    assert result.arms[0].injected_prompt_tokens == 4_096 - 4
    assert keeper.blocks[0].injected_prompt_tokens == 4_092


class TestWarmServer:
    """Case B4."""

    async def test_the_same_run_twice_is_cold_both_times(self) -> None:
        fake = FakeEngine()
        first, _ = await run(fake)
        second, _ = await run(fake)
        assert audit(first, "coldPrompt") is audit(second, "coldPrompt") is AuditOutcome.PASSED

    async def test_an_engine_that_ignores_salts_fails_the_cold_audit(self) -> None:
        fake = FakeEngine(salted=False)
        await run(fake, plan(arms=(OFF,), warm_up_blocks=0))
        again, keeper = await run(fake, plan(arms=(OFF,), warm_up_blocks=0))
        assert audit(again, "coldPrompt") is AuditOutcome.FAILED
        assert audit(again, "prefixCacheHits") is AuditOutcome.FAILED
        assert keeper.blocks[0].injected_cached_tokens == 1_024
        assert not again.arms[0].valid

    async def test_a_restart_between_two_reads_is_seen(self) -> None:
        result, _ = await run(FakeEngine(restarts=True), plan(arms=(OFF,), warm_up_blocks=0))
        assert audit(result, "countersIntact") is AuditOutcome.FAILED
        assert not result.arms[0].valid

    async def test_other_traffic_is_seen(self) -> None:
        result, _ = await run(FakeEngine(extra_prompt_tokens=5), plan(arms=(OFF,), warm_up_blocks=0))
        assert audit(result, "engineAlone") is AuditOutcome.FAILED


async def test_a_slow_client_flags_the_run() -> None:
    """Case B5: while the client does something else it measures itself."""

    async def dawdle(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.PREFILL_INJECTED:
            time.sleep(0.3)  # the fault itself: the event loop stands still

    given = plan(arms=(OFF,), warm_up_blocks=0, max_client_lag_milliseconds=100)
    result, keeper = await run(FakeEngine(), given, Keeper(on_event=dawdle))
    assert audit(result, "clientLag") is AuditOutcome.FAILED
    assert keeper.blocks[0].lag.max_loop_lag_seconds > 0.25
    assert "the client stood still" in keeper.blocks[0].problems[0]  # for more than its windows lasted
    assert not result.trustworthy


async def test_a_corrupted_state_under_pacing_fails_the_output_audit() -> None:
    result, _ = await run(FakeEngine(paced_logprob_shift=0.05))
    assert audit(result, "outputsEqual", "n4") is AuditOutcome.FAILED
    assert audit(result, "engineRepeats", None) is AuditOutcome.PASSED


async def test_an_engine_that_does_not_repeat_itself_is_said_to() -> None:
    result, _ = await run(FakeEngine(unsteady=True))
    assert audit(result, "engineRepeats", None) is AuditOutcome.NOT_APPLICABLE
    assert audit(result, "outputsEqual", "n4") is AuditOutcome.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("part", "fault", "said"),
    [
        ("injected", "error", "ended Failed: the engine ran out of memory"),
        ("injected", "cut", "ended Incomplete"),
        ("injected", "unfinished", "without its end mark"),
        ("injected", "refused", "HTTP 400: the prompt is too long"),
        ("resident-1", "error", "resident 1 ended Failed after 2 tokens"),
        ("resident-0", "complained", "2 of 3 requests were completed"),
        ("resident-0", "refused", "resident 0 ended Failed after 0 tokens"),
    ],
)
async def test_a_block_that_fails_makes_its_arm_invalid_and_the_run_goes_on(part: str, fault: str, said: str) -> None:
    position = 1  # the first measured block
    given = plan(seed=3)
    bad, good = (arm.name for _, arm in given.schedule())
    result, keeper = await run(FakeEngine(faults={f"-{position}-{part}": fault}), given)
    assert said in keeper.blocks[position].problems[0]
    valid = {arm.arm: arm.valid for arm in result.arms}
    assert valid == {bad: False, good: True}, [arm.reasons for arm in result.arms]
    assert {each.verdict for each in result.comparisons} == {Verdict.INVALID}
    assert len(keeper.requests) >= 3 * 2  # the failed block's too


async def test_a_block_that_takes_too_long_is_given_up() -> None:
    work = MixedPhase(
        resident_prompt_tokens=32, injected_prompt_tokens=1_024, before_seconds=60.0, block_timeout_seconds=0.3
    )
    result, keeper = await run(FakeEngine(), plan(arms=(OFF,), workload=work, warm_up_blocks=0))
    assert "longer than 0.3 s (blockTimeoutSeconds)" in keeper.blocks[0].problems[0]
    residents = [record for record in keeper.requests if record.role is Role.RESIDENT]
    assert {record.state for record in residents} == {RequestState.CANCELLED}
    assert all(record.output_tokens >= 8 for record in residents)
    assert not result.arms[0].valid


async def test_cancelling_keeps_what_was_finished_and_what_was_read() -> None:
    keeper = Keeper()
    third_block = asyncio.Event()

    async def watch(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.RESIDENTS_STEADY and event.position == 2:
            third_block.set()

    keeper.on_event = watch
    work = MixedPhase(resident_prompt_tokens=32, injected_prompt_tokens=1_024, before_seconds=0.2)
    fake = FakeEngine()
    running = asyncio.create_task(run(fake, plan(blocks=5, workload=work), keeper))
    await asyncio.wait_for(third_block.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [block.position for block in keeper.blocks] == [0, 1, 2]
    assert [bool(block.problems) for block in keeper.blocks] == [False, False, True]
    assert keeper.blocks[2].problems[0] == "the run was stopped"
    states = [record.state for record in keeper.requests]
    assert states[:6].count(RequestState.FINISHED) == 2
    assert states[6:] == [RequestState.CANCELLED, RequestState.CANCELLED]
    assert all(record.output_tokens >= 8 for record in keeper.requests[6:])


async def test_settings_that_can_not_be_applied_end_the_run() -> None:
    async def refuse(_arm: Arm) -> int:
        raise RuntimeError("the engine refused the settings")

    keeper = Keeper()
    async with FakeEngine().serve() as url, EngineClient(EngineAddress(url)) as client:
        with pytest.raises(RuntimeError, match="refused the settings"):
            await run_experiment(plan(), client, refuse, keeper)
    assert keeper.blocks == []


async def test_a_sink_that_fails_ends_the_run_with_its_block_kept() -> None:
    async def full(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.FIRST_TOKEN:
            raise OSError("the disk is full")

    keeper = Keeper(on_event=full)
    with pytest.raises(OSError, match="disk is full"):
        await run(FakeEngine(), plan(), keeper)
    assert [block.position for block in keeper.blocks] == [0]
    assert len(keeper.requests) == 3


async def test_an_engine_that_dies_ends_the_run_and_keeps_what_was_measured() -> None:
    fake, keeper = FakeEngine(), Keeper()
    async with EngineClient(EngineAddress("http://127.0.0.1:9")) as nobody:
        with pytest.raises(EngineError, match="no answer from the engine"):
            await run_experiment(plan(), nobody, Applier(fake), keeper)

    async def die(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.BLOCK_FINISHED:
            fake.dead = True

    keeper.on_event = die
    with pytest.raises(EngineError, match="no answer from the engine"):
        await run(fake, plan(), keeper)
    assert [(block.position, bool(block.problems)) for block in keeper.blocks] == [(0, False), (1, True)]
    assert len(keeper.requests) == 3  # those of the good block; of the other none was sent


async def test_a_plan_that_does_not_fit_never_starts() -> None:
    fake, keeper = FakeEngine(), Keeper()
    with pytest.raises(PlanError, match="raise it to at least 66"):
        await run(fake, plan(), keeper, EngineLimits(max_num_batched_tokens=65))
    assert keeper.events == []
    assert fake.started == []


async def test_what_the_caller_knows_of_the_engine_is_in_its_fingerprint() -> None:
    limits = EngineLimits(max_num_batched_tokens=512, max_num_seqs=8)
    result, _ = await run(FakeEngine(), plan(arms=(OFF,), warm_up_blocks=0), limits=limits)
    engine = result.engine
    assert (engine.model, engine.version, engine.max_model_len) == ("fake", "0.0-fake", 4_096)
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (512, 8)


async def test_records_survive_the_wire() -> None:
    result, keeper = await run(FakeEngine(), plan(arms=(OFF,), warm_up_blocks=0))
    for record in [*keeper.requests, *keeper.blocks, result]:
        document = json.loads(record.model_dump_json(by_alias=True))
        assert type(record).model_validate(document) == record
