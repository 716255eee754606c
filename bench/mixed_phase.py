"""One block of the mixed-phase workload: residents decode, a cold prompt is injected, the residents are ended."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final

from paceline.bench.clock import RunClock
from paceline.bench.counters import RUNNING, WAITING, Page
from paceline.bench.engine import EngineClient
from paceline.bench.plan import MixedPhase
from paceline.bench.prompts import make_prompt
from paceline.bench.protocol import ProgressKind
from paceline.bench.received import RequestIdentity
from paceline.bench.records import RequestRecord, RequestState, Role
from paceline.bench.steps import EngineStep
from paceline.bench.stream import Stream

ALONE_SECONDS: Final = 10.0
"""How long the requests of an earlier block may take to leave the engine."""
POLL_SECONDS: Final = 0.1

Tell = Callable[[ProgressKind, str], Awaitable[None]]


class BlockProblemError(RuntimeError):
    """The block can't be completed, so it does not count; the run goes on with the next one."""


@dataclass(frozen=True)
class BlockSetup:
    """What one block runs: whose settings, which prompts. `run_id` and `position` make its request ids unique."""

    workload: MixedPhase
    arm: str
    block: int
    position: int
    warm_up: bool
    run_id: str
    seed: int
    prompt_pool: tuple[int, ...]
    max_model_len: int


@dataclass
class BlockTrace:
    """What a block has seen so far, kept as it happens: what is missing did not come about."""

    steady_seconds: float | None = None
    injected_seconds: float | None = None
    measured_seconds: float | None = None
    start_page: Page | None = None
    window_page: Page | None = None
    injected_page: Page | None = None
    steps: list[EngineStep] | None = None
    records: list[RequestRecord] = field(default_factory=list)


class MixedPhaseBlock:
    """Runs one block. `run` may be cancelled or fail at any point; `close` then still yields every record."""

    def __init__(self, setup: BlockSetup, engine: EngineClient, clock: RunClock, tell: Tell):
        self.setup, self.trace = setup, BlockTrace()
        self._engine, self._clock, self._tell = engine, clock, tell
        work = setup.workload
        lasting = setup.max_model_len - work.resident_prompt_tokens
        self._residents = [
            self._stream(Role.RESIDENT, index, work.resident_prompt_tokens, lasting) for index in range(work.residents)
        ]
        self._injected = self._stream(Role.INJECTED, 0, work.prompt_tokens, work.injected_output_tokens)
        self._resident_tasks: list[asyncio.Task[RequestRecord]] = []

    async def run(self) -> None:
        """Run all phases. Raises BlockProblemError, EngineError, or TimeoutError for a block that takes too long."""
        async with asyncio.timeout(self.setup.workload.block_timeout_seconds):
            # Requests that the block before gave up may still be on their way out of the engine.
            self.trace.start_page = await self._page_once_running(0)
            await self._start_residents()
            step_before = await self._engine.newest_step()
            await self._window_before()
            await self._inject()
            self.trace.measured_seconds = self._clock.seconds()
            self.trace.injected_page = await self._engine.metrics()
            self.trace.steps = await self._engine.steps(after=step_before)

    async def close(self, reason: str | None = None) -> None:
        """End what still runs: as planned, or for a reason where the block was cut short."""
        state = RequestState.ENDED_BY_PLAN if reason is None else RequestState.CANCELLED
        ended = [await stream.end(state, reason) for stream in (*self._residents, self._injected)]
        self.trace.records = [record for record in ended if record is not None]

    async def _start_residents(self) -> None:
        self._resident_tasks = [stream.start(self._clock.seconds()) for stream in self._residents]
        await self._unless_a_resident_ends(self._all_have_tokens(self.setup.workload.steady_tokens))
        await self._unless_a_resident_ends(self._until_alone())

    async def _all_have_tokens(self, count: int) -> None:
        for stream in self._residents:
            await stream.has_tokens(count)

    async def _until_alone(self) -> None:
        self.trace.window_page = await self._page_once_running(len(self._residents))

    async def _page_once_running(self, ours: int) -> Page:
        """Wait until the engine runs `ours` requests and queues none; return the metrics page that says so."""
        deadline = self._clock.seconds() + ALONE_SECONDS
        while True:
            page = await self._engine.metrics()
            running, waiting = page.total(RUNNING), page.total(WAITING)
            if running is None or (running == ours and not waiting):
                return page
            if self._clock.seconds() > deadline:
                raise BlockProblemError(
                    f"the engine runs {running:.0f} and queues {waiting or 0:.0f} requests, of which "
                    f"{ours} are ours: stop the other traffic and run again"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _window_before(self) -> None:
        self.trace.steady_seconds = self._clock.seconds()
        await self._tell(ProgressKind.RESIDENTS_STEADY, f"{len(self._residents)} residents decode steadily")
        await self._unless_a_resident_ends(asyncio.sleep(self.setup.workload.before_seconds))

    async def _inject(self) -> None:
        work = self.setup.workload
        self.trace.injected_seconds = self._clock.seconds()
        injected = self._injected.start(self.trace.injected_seconds)
        await self._tell(ProgressKind.PREFILL_INJECTED, f"a prompt of {work.prompt_tokens} tokens was sent")
        first_token = asyncio.create_task(self._injected.first_token.wait())
        try:
            first = asyncio.wait([first_token, injected], return_when=asyncio.FIRST_COMPLETED)
            await self._unless_a_resident_ends(first)
        finally:
            first_token.cancel()
        if self._injected.first_token.is_set():
            await self._tell(ProgressKind.FIRST_TOKEN, "the injected prompt has its first token")
        record = await injected
        if record.state is not RequestState.FINISHED:
            raise BlockProblemError(f"the injected request ended {record.state.value}: {record.error}")

    async def _unless_a_resident_ends(self, awaited: Coroutine[None, None, object]) -> None:
        waiter = asyncio.create_task(awaited)
        try:
            await asyncio.wait([waiter, *self._resident_tasks], return_when=asyncio.FIRST_COMPLETED)
            ended = [task.result() for task in self._resident_tasks if task.done()]
            if ended:
                raise BlockProblemError(_ended_early(ended[0]))
            await waiter
        finally:
            waiter.cancel()

    def _stream(self, role: Role, index: int, prompt_tokens: int, max_tokens: int) -> Stream:
        setup = self.setup
        identity = RequestIdentity(
            request_id=f"{setup.run_id}-{setup.position}-{role.value.lower()}-{index}",
            role=role,
            index=index,
            arm=setup.arm,
            block=setup.block,
            warm_up=setup.warm_up,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
        )
        prompt = make_prompt(
            setup.prompt_pool, prompt_tokens, seed=setup.seed, block=setup.block, role=role.value, index=index
        )
        return self._engine.completion(self._clock, identity, prompt, cache_salt=identity.request_id)


def _ended_early(record: RequestRecord) -> str:
    what = f"resident {record.index} ended {record.state.value} after {record.output_tokens} tokens, too early"
    if record.state is RequestState.FINISHED:
        return f"{what}: use a shorter workload.injectedPromptTokens, or an engine with a larger maxModelLen"
    return f"{what}: {record.error}"
