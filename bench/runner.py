"""Runs an experiment: one block after the other, each with its arm's settings live, and every record handed over.

Cancel the task to stop a run: the block in progress is closed, its records reach the sink, and the cancellation goes
on. The settings that the last arm put live stay: putting the profile's own back is the caller's part.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.bench.blocks import BlockFrame, finish_block
from paceline.bench.capacity import check_capacity, longest_prompt
from paceline.bench.clock import RunClock
from paceline.bench.conclude import conclude
from paceline.bench.engine import EngineClient, EngineError
from paceline.bench.lag import LagMeter
from paceline.bench.mixed_phase import BlockProblemError, BlockSetup, MixedPhaseBlock
from paceline.bench.plan import Arm, ExperimentPlan
from paceline.bench.protocol import ProgressEvent, ProgressKind, RunSink, SettingsApplier
from paceline.bench.records import BlockRecord, EngineFingerprint, ExperimentResult, RequestRecord
from paceline.bench.sizing import size_prompt


@dataclass(frozen=True)
class EngineLimits:
    """What the caller knows of the engine and the engine doesn't tell: taken from the profile."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True)
class ScheduledBlock:
    """One block of a run in its place."""

    position: int
    block: int
    arm: Arm
    warm_up: bool


@dataclass
class _Run:
    plan: ExperimentPlan
    engine: EngineClient
    apply_settings: SettingsApplier
    sink: RunSink
    fingerprint: EngineFingerprint
    prompt_pool: tuple[int, ...]
    clock: RunClock = field(default_factory=RunClock)
    run_id: str = field(default_factory=lambda: f"run-{secrets.token_hex(6)}")
    total: int = 0
    blocks: list[BlockRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)


async def run_experiment(
    plan: ExperimentPlan,
    engine: EngineClient,
    apply_settings: SettingsApplier,
    sink: RunSink,
    limits: EngineLimits | None = None,
) -> ExperimentResult:
    """Run a plan to its end and return what follows from it.

    Raises PlanError before anything runs where the engine can't run the plan, EngineError where it can't be reached
    any more, and whatever the sink or `apply_settings` raise. A block that fails does not end the run: it makes its
    arm invalid.
    """
    fingerprint = await describe_engine(engine, limits)
    check_capacity(plan, fingerprint)
    run = _Run(plan, engine, apply_settings, sink, fingerprint, await engine.prompt_pool())
    places = run_order(plan)
    run.total = len(places)
    await _tell(run, places[0], ProgressKind.RUN_STARTED, f"{len(places)} blocks on {fingerprint.model}")
    await _size(run, places[0])
    for place in places:
        await _run_block(run, place)
    result = conclude(run.plan, fingerprint, run.clock.origin, run.blocks, run.requests)
    await _tell(run, places[-1], ProgressKind.RUN_FINISHED, "all blocks were run", done=run.total)
    return result


async def describe_engine(engine: EngineClient, limits: EngineLimits | None = None) -> EngineFingerprint:
    """Ask the engine who it is, and add what the caller knows of its limits."""
    fingerprint = await engine.fingerprint()
    known = {name: value for name, value in vars(limits or EngineLimits()).items() if value is not None}
    return fingerprint.model_copy(update=known)


def run_order(plan: ExperimentPlan) -> Sequence[ScheduledBlock]:
    """Return every block in the order in which it runs.

    A warm-up block repeats block 0 of the baseline, with the same prompts: what it measures is discarded, and its
    outputs tell whether the engine gives the same answer twice.
    """
    warm_ups = [(0, plan.baseline, True)] * plan.warm_up_blocks
    measured = [(block, arm, False) for block, arm in plan.schedule()]
    return [
        ScheduledBlock(position, block, arm, warm_up)
        for position, (block, arm, warm_up) in enumerate([*warm_ups, *measured])
    ]


async def _size(run: _Run, place: ScheduledBlock) -> None:
    """Find the length of the injected prompt where the plan gives a time instead."""
    work = run.plan.workload
    if work.target_prefill_seconds is None:
        return
    longest = longest_prompt(run.plan, run.fingerprint)
    found = await size_prompt(run.engine, run.clock, run.prompt_pool, run.run_id, work.target_prefill_seconds, longest)
    run.plan = run.plan.model_copy(update={"workload": work.sized(found.tokens)})
    held = f", the longest that the engine holds; {work.target_prefill_seconds:g} s were asked" if found.limited else ""
    message = f"a prompt of {found.tokens:,} tokens prefills in about {found.seconds:.1f} s{held}"
    await _tell(run, place, ProgressKind.PROMPT_SIZED, message)


async def _run_block(run: _Run, place: ScheduledBlock) -> None:
    revision = await run.apply_settings(place.arm)
    settings = place.arm.model_dump_json(by_alias=True, exclude_none=True, include={"pacing", "coalescing"})
    await _tell(run, place, ProgressKind.SETTINGS_APPLIED, settings)
    await _tell(run, place, ProgressKind.BLOCK_STARTED, "warm-up, discarded" if place.warm_up else "measured")
    setup = BlockSetup(
        workload=run.plan.workload,
        arm=place.arm.name,
        block=place.block,
        position=place.position,
        warm_up=place.warm_up,
        run_id=run.run_id,
        seed=run.plan.seed,
        prompt_pool=run.prompt_pool,
        max_model_len=run.fingerprint.max_model_len or 0,
    )
    block = MixedPhaseBlock(setup, run.engine, run.clock, lambda kind, message: _tell(run, place, kind, message))
    started, meter = run.clock.now(), LagMeter(run.clock)
    problem: str | None = "the run was stopped"
    try:
        async with meter:
            problem = await _attempt(block)
    except EngineError as error:
        problem = str(error)
        raise
    finally:
        await block.close(problem)
        frame = BlockFrame(
            started=started,
            ended_seconds=run.clock.seconds(),
            revision=revision,
            lag=meter.lag(block.trace.records, block.trace.steady_seconds, block.trace.measured_seconds),
            max_lag_seconds=run.plan.max_client_lag_milliseconds / 1_000,
            problem=problem,
        )
        await _hand_over(run, *finish_block(setup, block.trace, frame))
    await _tell(run, place, ProgressKind.BLOCK_FINISHED, problem or "complete")


async def _attempt(block: MixedPhaseBlock) -> str | None:
    """Run a block and return why it does not count; None for a good one."""
    try:
        await block.run()
    except BlockProblemError as error:
        return str(error)
    except TimeoutError:
        return f"the block took longer than {block.setup.workload.block_timeout_seconds:g} s (blockTimeoutSeconds)"
    return None


async def _hand_over(run: _Run, block: BlockRecord, requests: list[RequestRecord]) -> None:
    for record in requests:
        await run.sink.request(record)
    await run.sink.block(block)
    run.requests += requests
    run.blocks.append(block)


async def _tell(run: _Run, place: ScheduledBlock, kind: ProgressKind, message: str, *, done: int | None = None) -> None:
    await run.sink.event(
        ProgressEvent(
            kind=kind,
            seconds=run.clock.seconds(),
            position=place.position if done is None else done,
            total=run.total,
            message=message,
            arm=place.arm.name,
            block=place.block,
            warm_up=place.warm_up,
        )
    )
