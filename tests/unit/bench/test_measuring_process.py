"""Runs in a process of their own, against a fake engine that the test's process serves."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench_fakes import Applier, FakeEngine, Keeper

from paceline.bench.capacity import PlanError
from paceline.bench.engine import EngineAddress, EngineError
from paceline.bench.measuring_process import MeasuringProcessError, run_in_process
from paceline.bench.messages import Job, line
from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.protocol import ProgressEvent, ProgressKind
from paceline.bench.records import ExperimentResult, RequestState
from paceline.bench.runner import EngineLimits
from paceline.engine_ext.settings import PacingMode, PacingSettings

WORK = MixedPhase(
    resident_prompt_tokens=32, injected_prompt_tokens=1_024, injected_output_tokens=4, before_seconds=0.05
)
PLAN = ExperimentPlan(
    name="x",
    arms=(Arm(name="off"), Arm(name="n4", pacing=PacingSettings(mode=PacingMode.FIXED, interval=4))),
    workload=WORK,
    blocks=1,
    control_arm=False,
    max_client_lag_milliseconds=60_000,
)


async def run(
    fake: FakeEngine, keeper: Keeper, plan: ExperimentPlan = PLAN, limits: EngineLimits | None = None
) -> ExperimentResult:
    async with fake.serve() as url:
        return await run_in_process(plan, EngineAddress(url), Applier(fake), keeper, limits)


def measuring_children() -> set[int]:
    """Return the processes that measure for this one."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            words, parent = (folder / "cmdline").read_bytes().split(b"\0"), (folder / "stat").read_text()
        except (OSError, ValueError):
            continue
        if b"paceline.bench.measure" in words and int(parent.rpartition(")")[2].split()[1]) == os.getpid():
            found.add(int(folder.name))
    return found


async def test_the_caller_applies_the_settings_and_keeps_the_records() -> None:
    fake, keeper = FakeEngine(), Keeper()
    result = await run(fake, keeper, limits=EngineLimits(max_num_batched_tokens=512, max_num_seqs=8))
    assert [(block.position, block.revision, block.problems) for block in keeper.blocks] == [
        (position, position + 1, ()) for position in range(3)
    ]
    assert len(keeper.requests) == 3 * 3
    assert keeper.events[0].kind is ProgressKind.RUN_STARTED
    assert keeper.events[-1].kind is ProgressKind.RUN_FINISHED
    assert all(arm.valid for arm in result.arms)
    assert (result.engine.max_num_batched_tokens, result.engine.max_num_seqs) == (512, 8)
    assert measuring_children() == set()


async def test_what_else_the_caller_does_is_not_measured() -> None:
    async def dawdle(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.RESIDENTS_STEADY:
            time.sleep(3)  # the caller's event loop stands still

    keeper = Keeper(on_event=dawdle)
    await run(FakeEngine(), keeper, PLAN.model_copy(update={"warm_up_blocks": 0}))
    assert all(block.lag.max_loop_lag_seconds < 2 for block in keeper.blocks)


async def test_a_plan_that_does_not_fit_is_refused() -> None:
    keeper = Keeper()
    with pytest.raises(PlanError, match="raise it to at least 66"):
        await run(FakeEngine(), keeper, limits=EngineLimits(max_num_batched_tokens=65))
    assert keeper.events == []


async def test_an_engine_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match=r"no answer from the engine to GET http://127\.0\.0\.1:9/v1/models"):
        await run_in_process(PLAN, EngineAddress("http://127.0.0.1:9"), Applier(FakeEngine()), Keeper())


async def test_settings_that_can_not_be_applied_end_the_run() -> None:
    async def refuse(_arm: Arm) -> int:
        raise LookupError("the engine refused the settings")

    keeper = Keeper()
    async with FakeEngine().serve() as url:
        with pytest.raises(LookupError, match="refused the settings"):
            await run_in_process(PLAN, EngineAddress(url), refuse, keeper)
    assert keeper.blocks == []
    assert measuring_children() == set()


async def test_a_sink_that_fails_ends_the_run_with_its_block_kept() -> None:
    async def full(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.FIRST_TOKEN:
            raise OSError("the disk is full")

    keeper = Keeper(on_event=full)
    with pytest.raises(OSError, match="disk is full"):
        await run(FakeEngine(), keeper)
    assert [block.position for block in keeper.blocks] == [0]
    assert len(keeper.requests) == 3


async def test_cancelling_hands_the_open_block_over() -> None:
    keeper, second_block, answer = Keeper(), asyncio.Event(), asyncio.Event()

    async def watch(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.RESIDENTS_STEADY and event.position == 1:
            second_block.set()
            await answer.wait()  # the run is cancelled while a call of its has no answer yet

    keeper.on_event = watch
    long_work = WORK.model_copy(update={"before_seconds": 0.5})
    running = asyncio.create_task(run(FakeEngine(), keeper, PLAN.model_copy(update={"workload": long_work})))
    await asyncio.wait_for(second_block.wait(), 60)
    running.cancel()
    asyncio.get_running_loop().call_later(0.2, answer.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert measuring_children() == set()
    assert [block.position for block in keeper.blocks] == [0, 1]
    assert keeper.blocks[1].problems[0] == "the run was stopped"
    assert [record.state for record in keeper.requests[3:]] == [RequestState.CANCELLED] * 2
    assert all(record.output_tokens >= 8 for record in keeper.requests[3:])


async def test_a_process_that_dies_is_told_apart_from_an_engine_that_does() -> None:
    async def kill(event: ProgressEvent) -> None:
        if event.kind is ProgressKind.BLOCK_FINISHED:
            (process,) = measuring_children()
            os.kill(process, signal.SIGKILL)

    keeper = Keeper(on_event=kill)
    with pytest.raises(MeasuringProcessError, match="ended with status -9"):
        await run(FakeEngine(), keeper)
    assert [block.position for block in keeper.blocks] == [0]


async def test_what_a_crashed_process_said_last_is_the_reason() -> None:
    class Odd(FakeEngine):
        def metrics_page(self) -> str:
            return "{{ no metrics page"

    with pytest.raises(MeasuringProcessError, match="ended with status 1: ValueError: Invalid labels"):
        await run(Odd(), Keeper())


async def test_the_process_ends_with_its_caller() -> None:
    plan = PLAN.model_copy(update={"workload": WORK.model_copy(update={"before_seconds": 600})})
    fake = FakeEngine()
    async with fake.serve() as url:
        argv = (sys.executable, "-P", "-m", "paceline.bench.measure")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*argv, **pipes)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line(Job(plan=plan, address=EngineAddress(url), limits=EngineLimits())))
        await process.stdout.readline()  # it waits for the answer to its first call
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 60) == 0
