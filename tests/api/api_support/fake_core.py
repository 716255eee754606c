"""The engine core of the fake engine: a step loop in real time with made-up step times, paced as the settings say."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

from paceline.engine_ext.settings import LiveSettings

DECODE_SECONDS = 0.004
CHUNK_SECONDS = 0.03
CHUNK_TOKENS = 512


@dataclass(eq=False)
class Sequence:
    """One request: the prompt tokens that are still to be prefilled, and the output tokens as they come."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    left: int = 0
    made: int = 0
    tokens: asyncio.Queue[int] = field(default_factory=asyncio.Queue)


@dataclass
class FakeCore:
    """Steps while there are requests. `steps` are the records of the admin port."""

    settings: LiveSettings = field(default_factory=LiveSettings)
    running: list[Sequence] = field(default_factory=list)
    steps: list[dict[str, object]] = field(default_factory=list)
    prompt_tokens: int = 0
    generated: int = 0
    _numbers: count = field(default_factory=lambda: count(1))
    _since_mixed: int = 1_000_000
    _task: asyncio.Task[None] | None = None

    async def complete(self, request_id: str, prompt_tokens: int, max_tokens: int) -> AsyncIterator[int]:
        """Yield a request's output tokens; one that is not read to its end leaves the engine."""
        sequence = Sequence(request_id, prompt_tokens, max_tokens, left=prompt_tokens)
        self.running.append(sequence)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            for _ in range(max_tokens):
                yield await sequence.tokens.get()
        finally:
            if sequence in self.running:
                self.running.remove(sequence)

    async def _run(self) -> None:
        while self.running:
            await self._step()

    async def _step(self) -> None:
        decoders = [sequence for sequence in self.running if not sequence.left]
        prefilling = next((sequence for sequence in self.running if sequence.left), None)
        if decoders and self._since_mixed < self.settings.pacing.effective_interval:
            prefilling = None
        chunk = min(CHUNK_TOKENS, prefilling.left) if prefilling else 0
        seconds = (DECODE_SECONDS if decoders else 0) + (CHUNK_SECONDS * chunk / CHUNK_TOKENS)
        await asyncio.sleep(seconds)
        self._since_mixed = 1 if decoders and chunk else self._since_mixed + 1
        scheduled = {sequence.request_id: 1 for sequence in decoders}
        for sequence in decoders:
            self._emit(sequence)
        if prefilling is not None:
            scheduled[prefilling.request_id] = chunk
            prefilling.left -= chunk
            self.prompt_tokens += chunk
            if not prefilling.left:
                self._emit(prefilling)
        step = {"engine": 0, "step": next(self._numbers), "durationSeconds": seconds, "scheduled": scheduled}
        self.steps = [*self.steps[-1_000:], step]

    def _emit(self, sequence: Sequence) -> None:
        # The same output whatever the pacing, as greedy decoding gives.
        sequence.tokens.put_nowait(100 + sequence.made % 7)
        sequence.made += 1
        self.generated += 1
        if sequence.made >= sequence.max_tokens and sequence in self.running:
            self.running.remove(sequence)
