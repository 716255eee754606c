"""Runs an experiment in a process of its own, so that nothing else its caller does is measured as the engine's delay.

A control API answers requests, writes to its database and builds reports in one event loop; each of those would hold
up the reading of the streams. Settings and records still go through the caller's own applier and sink.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from typing import Final

from paceline.bench.capacity import PlanError
from paceline.bench.engine import EngineAddress, EngineError
from paceline.bench.messages import (
    FROM_PROCESS,
    LONGEST_LINE_BYTES,
    Answer,
    Call,
    Failed,
    Finished,
    Job,
    Stop,
    Stopped,
    line,
)
from paceline.bench.plan import ExperimentPlan
from paceline.bench.protocol import RunSink, SettingsApplier
from paceline.bench.records import ExperimentResult
from paceline.bench.runner import EngineLimits
from paceline.bench.wire import WireModel

STOP_SECONDS: Final = 10.0
"""How long a stopped run may take to close its block and hand the records over."""


class MeasuringProcessError(RuntimeError):
    """The process that measured ended without an outcome."""


async def run_in_process(
    plan: ExperimentPlan,
    address: EngineAddress,
    apply_settings: SettingsApplier,
    sink: RunSink,
    limits: EngineLimits | None = None,
) -> ExperimentResult:
    """Run a plan as `runner.run_experiment` does, in a child process that does nothing else.

    Raises what `run_experiment` raises, and MeasuringProcessError where the process dies. Cancelled, it stops the run
    in order: the block in progress is closed and its records reach the sink. The process ends with its caller.
    """
    job = Job(plan=plan, address=address, limits=limits or EngineLimits())
    argv = (sys.executable, "-P", "-m", "paceline.bench.measure")
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LONGEST_LINE_BYTES
    )
    run = _Run(process, apply_settings, sink)
    serving = asyncio.create_task(run.serve(job), name="measuring-process")
    try:
        return await asyncio.shield(serving)
    except asyncio.CancelledError:
        run.tell(Stop())
        await asyncio.wait([serving], timeout=STOP_SECONDS)
        raise
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.exception()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await run.listening


class _Run:
    """The caller's end of one run."""

    def __init__(self, process: Process, apply_settings: SettingsApplier, sink: RunSink) -> None:
        self._process, self._apply, self._sink = process, apply_settings, sink
        self._last_words = "it said nothing"
        self.listening = asyncio.create_task(self._listen(), name="measuring-process-log")

    def tell(self, message: WireModel) -> None:
        """Write a message; that the process is gone shows when its lines end."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line(message))

    async def serve(self, job: Job) -> ExperimentResult:
        """Answer the process's calls until its outcome."""
        self.tell(job)
        failure: BaseException | None = None
        assert self._process.stdout is not None
        async for written in self._process.stdout:
            match FROM_PROCESS.validate_json(written):
                case Finished(result=result):
                    return result
                case Failed(error="PlanError", message=message):
                    raise PlanError(message)
                case Failed(message=message):
                    raise EngineError(message)
                case Stopped() if failure is not None:
                    raise failure
                case Stopped():
                    raise MeasuringProcessError("the run was stopped")
                case Call() as call:
                    # The run goes on after a failed call, to close its block: the failure is raised at its end.
                    performing = asyncio.create_task(self._perform(call))
                    await asyncio.wait([performing])
                    error = performing.exception()
                    failure = failure or error
                    revision = performing.result() if error is None else None
                    self.tell(Answer(number=call.number, revision=revision, failed=error is not None))
        if failure is not None:
            raise failure
        status = await self._process.wait()
        await self.listening
        raise MeasuringProcessError(f"the measuring process ended with status {status}: {self._last_words}")

    async def _listen(self) -> None:
        """Pass the process's log on, and keep its last line, which is what a crash says."""
        assert self._process.stderr is not None
        async for written in self._process.stderr:
            text = written.decode(errors="replace").rstrip()
            print(text, file=sys.stderr, flush=True)
            self._last_words = text.strip() or self._last_words

    async def _perform(self, call: Call) -> int | None:
        if call.apply is not None:
            return await self._apply(call.apply)
        if call.event is not None:
            await self._sink.event(call.event)
        if call.request is not None:
            await self._sink.request(call.request)
        if call.block is not None:
            await self._sink.block(call.block)
        return None
