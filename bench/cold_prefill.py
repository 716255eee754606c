"""The workload "cold prefill over lengths": cold prompts of given lengths, alone or beside decoding residents.

A block belongs to one arm and runs every length once, each prompt cold by a salt of its own. Blocks alternate: all arms
in order, then in reverse, so that a drift of the machine that is linear in time adds the same to each.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from paceline.bench.clock import RunClock
from paceline.bench.engine import EngineClient
from paceline.bench.mixed_phase import BlockProblemError
from paceline.bench.plan import Arm
from paceline.bench.prompts import make_prompt
from paceline.bench.protocol import SettingsApplier
from paceline.bench.received import RequestIdentity
from paceline.bench.records import RequestRecord, RequestState, Role
from paceline.bench.steps import prefill_steps
from paceline.bench.stream import Stream

STEADY_TOKENS: Final = 4
"""Output tokens that every resident must have before a prompt is measured beside it."""


@dataclass(frozen=True)
class ColdPrefill:
    """What is run: each of `lengths`, in tokens, `samples` times in every arm, beside `residents` that decode.

    `resident_max_tokens` must outlast a block; a resident that ends earlier makes the run fail, never look better.
    """

    lengths: tuple[int, ...]
    samples: int
    residents: int = 0
    resident_prompt_tokens: int = 64
    resident_max_tokens: int = 16_384
    output_tokens: int = 4
    request_timeout_seconds: float = 600.0

    def block_order(self, arms: Sequence[Arm]) -> list[tuple[int, Arm]]:
        """Return the blocks as (sample, arm), alternating the arms' order from one sample to the next."""
        return [(sample, arm) for sample in range(self.samples) for arm in (arms if sample % 2 == 0 else arms[::-1])]


@dataclass(frozen=True)
class Sample:
    """One measured prompt: seconds to its first token, and its passes, None where the admin port is not known."""

    arm: str
    length: int
    sample: int
    residents: int
    seconds: float
    passes: int | None
    record: RequestRecord


@dataclass
class ColdPrefillRun:
    """Runs the workload on one engine; `tell` is given each sample as it comes."""

    engine: EngineClient
    apply_settings: SettingsApplier
    tell: Callable[[Sample], None]
    seed: int = 0
    clock: RunClock = field(default_factory=RunClock)
    run_id: str = field(default_factory=lambda: f"cold-{secrets.token_hex(4)}")
    pool: tuple[int, ...] = ()
    runs: int = 0

    async def run(self, work: ColdPrefill, arms: Sequence[Arm]) -> list[Sample]:
        """Run all blocks; every prompt is cold, also those of an earlier run.

        Raises BlockProblemError for a request that does not end as planned.
        """
        self.pool = self.pool or await self.engine.prompt_pool()
        self.runs += 1
        samples: list[Sample] = []
        for sample, arm in work.block_order(arms):
            await self.apply_settings(arm)
            residents = await self._start_residents(work, arm, sample)
            try:
                for length in work.lengths:
                    samples.append(await self._measure(work, arm, sample, length, residents))
                    self.tell(samples[-1])
            finally:
                for resident in residents:
                    await resident.end(RequestState.ENDED_BY_PLAN)
        return samples

    async def ask(self, name: str, prompt: list[int], salt: str, arm: Arm, timeout: float = 600.0) -> RequestRecord:
        """Send one prompt and return its record; prompts of one `salt` may hit each other's prefixes."""
        stream = self._stream(f"{self.run_id}-{name}", Role.INJECTED, prompt, 4, arm, salt)
        return await self._finished(stream, timeout)

    async def _measure(
        self, work: ColdPrefill, arm: Arm, sample: int, length: int, residents: Sequence[Stream]
    ) -> Sample:
        name = f"{self.run_id}-{self.runs}-{arm.name}-{work.residents}-{length}-{sample}"
        prompt = make_prompt(self.pool, length, seed=self.seed, block=sample, role="cold", index=length)
        stream = self._stream(name, Role.INJECTED, prompt, work.output_tokens, arm, salt=name)
        step_before = await self.engine.newest_step()
        record = await self._finished(stream, work.request_timeout_seconds)
        ended = [resident for resident in residents if resident.record is not None]
        if ended:
            raise BlockProblemError("a resident ended before the block did: give residents more tokens")
        if record.usage.cached_tokens:
            raise BlockProblemError(f"{name} was not cold: {record.usage.cached_tokens} of its tokens were cached")
        seconds = record.time_to_first_token_seconds
        assert seconds is not None  # a finished request has tokens
        passes = await self._passes(name, length, step_before)
        return Sample(arm.name, length, sample, work.residents, seconds, passes, record)

    async def _passes(self, name: str, length: int, after: int) -> int | None:
        steps = await self.engine.steps(after=after)
        if steps is None:
            return None
        found = prefill_steps(steps, name, length)
        if not found.complete:
            raise BlockProblemError(f"the engine has records of {found.tokens} of the {length} tokens of {name} only")
        return found.chunks

    async def _start_residents(self, work: ColdPrefill, arm: Arm, sample: int) -> list[Stream]:
        residents = []
        for index in range(work.residents):
            name = f"{self.run_id}-{self.runs}-{arm.name}-resident-{index}-{sample}"
            prompt = make_prompt(
                self.pool, work.resident_prompt_tokens, seed=self.seed, block=sample, role="resident", index=index
            )
            resident = self._stream(name, Role.RESIDENT, prompt, work.resident_max_tokens, arm, salt=name)
            resident.start(self.clock.seconds())
            residents.append(resident)
        async with asyncio.timeout(work.request_timeout_seconds):
            for resident in residents:
                await resident.has_tokens(STEADY_TOKENS)
        return residents

    async def _finished(self, stream: Stream, timeout: float) -> RequestRecord:
        async with asyncio.timeout(timeout):
            record = await stream.start(self.clock.seconds())
        if record.state is not RequestState.FINISHED:
            raise BlockProblemError(f"{record.request_id} ended {record.state.value}: {record.error}")
        return record

    def _stream(self, name: str, role: Role, prompt: list[int], max_tokens: int, arm: Arm, salt: str) -> Stream:
        identity = RequestIdentity(
            name, role, 0, arm.name, 0, warm_up=False, prompt_tokens=len(prompt), max_tokens=max_tokens
        )
        return self.engine.completion(self.clock, identity, prompt, cache_salt=salt)
