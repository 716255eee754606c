"""The program of a measuring process: `python -P -m paceline.bench.measure`, spoken to by `measuring_process`.

It reads a job and answers on standard input, and writes its calls and its outcome to standard output.
"""

import asyncio
import gc
import os
import signal
import sys
from typing import BinaryIO

from paceline.bench.capacity import PlanError
from paceline.bench.engine import EngineClient, EngineError
from paceline.bench.messages import (
    LONGEST_LINE_BYTES,
    TO_PROCESS,
    Answer,
    Call,
    Failed,
    Finished,
    Job,
    Stopped,
    line,
)
from paceline.bench.plan import Arm
from paceline.bench.protocol import ProgressEvent
from paceline.bench.records import BlockRecord, RequestRecord
from paceline.bench.runner import run_experiment
from paceline.bench.wire import WireModel


class CallFailedError(Exception):
    """The caller could not do what it was called for, or is gone."""


class Caller:
    """The settings applier and the sink of a run, both at the other end of the pipes."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._number = 0
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()

    async def __call__(self, arm: Arm) -> int | None:
        """Apply an arm's settings."""
        return await self._call(apply=arm)

    async def event(self, event: ProgressEvent) -> None:
        """Tell of progress."""
        await self._call(event=event)

    async def request(self, record: RequestRecord) -> None:
        """Hand a request's record over."""
        await self._call(request=record)

    async def block(self, record: BlockRecord) -> None:
        """Hand a block's record over."""
        await self._call(block=record)

    def tell(self, message: WireModel) -> None:
        """Write a message."""
        self._out.write(line(message))
        self._out.flush()

    async def listen(self, reader: asyncio.StreamReader, run: "asyncio.Task[WireModel]") -> None:
        """Pass answers on until told to stop, or until the caller is gone: then end the run."""
        while written := await reader.readline():
            message = TO_PROCESS.validate_json(written)
            if isinstance(message, Answer):
                self._answers.put_nowait(message)
            else:
                run.cancel()
        self._answers.put_nowait(None)
        run.cancel()

    async def _call(self, **argument: object) -> int | None:
        self._number += 1
        self.tell(Call.model_validate({"number": self._number, **argument}))
        while True:
            answer = await self._answers.get()
            if answer is None:
                self._answers.put_nowait(None)
                raise CallFailedError
            # A cancelled run no longer waits for the answer of the call that it was in.
            if answer.number == self._number:
                break
        if answer.failed:
            raise CallFailedError
        return answer.revision


async def run(job: Job, caller: Caller) -> WireModel:
    """Run the job and return its outcome."""
    try:
        async with EngineClient(job.address) as client:
            return Finished(result=await run_experiment(job.plan, client, caller, caller, job.limits))
    except PlanError as error:
        return Failed(error="PlanError", message=str(error))
    except EngineError as error:
        return Failed(error="EngineError", message=str(error))
    except (CallFailedError, asyncio.CancelledError):
        return Stopped()


async def serve(out: BinaryIO) -> None:
    """Run the one job that standard input holds."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    job, caller = Job.model_validate_json(await reader.readline()), Caller(out)
    running = asyncio.create_task(run(job, caller), name="run")
    listening = asyncio.create_task(caller.listen(reader, running), name="listen")
    try:
        caller.tell(await running)
    finally:
        listening.cancel()


def take_priority() -> None:
    """Have this process woken before all that computes, where the user may: a late reading is measured as lag."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError as error:
        note = "measuring at ordinary priority: real-time scheduling wants CAP_SYS_NICE or a limit (ulimit -r)"
        print(f"{note}: {error.strerror}", file=sys.stderr, flush=True)


def main() -> None:
    """Keep standard output to the messages, and run."""
    take_priority()
    # Ctrl-C reaches the whole process group; the caller decides when the run ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A collection would hold up the reading of the streams, and a process of one run has no cycles worth collecting.
    gc.disable()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asyncio.run(serve(out))


if __name__ == "__main__":
    main()
