"""Watches the engine cores: the newest state of each, and since when work has waited without a step."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from paceline.engine_ext.admin.cores import CoresUnavailableError, EngineCores
from paceline.engine_ext.methods import STATE_METHOD

POLL_SECONDS: Final = 1.0


@dataclass
class Monitor:
    """`states` are the newest answers, by rank; empty until the first answer of all cores."""

    cores: EngineCores
    stall_seconds: float
    clock: Callable[[], float] = time.monotonic
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    trouble: str | None = None
    progress_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.progress_at = self.clock()

    @property
    def stalled_for(self) -> float:
        """Seconds since the engine last made a step, or last had nothing to do."""
        return self.clock() - self.progress_at

    @property
    def is_stalled(self) -> bool:
        """Whether work has waited for too long without a step."""
        return self.stalled_for > self.stall_seconds

    def note(self, answers: list[dict[str, Any]]) -> None:
        """Take in one answer of every core; all of those that have work must have moved since the last time."""
        moved = all(
            not answer["unfinished"] or answer["step"] > self.states.get(answer["engine"], {"step": -1})["step"]
            for answer in answers
        )
        if moved:
            self.progress_at = self.clock()
        self.states = {answer["engine"]: answer for answer in answers}
        self.trouble = None

    async def run(self) -> None:
        """Poll the engine cores for ever."""
        while True:
            try:
                self.note(await self.cores.ask(STATE_METHOD))
            except CoresUnavailableError as error:
                self.trouble = str(error)
            await asyncio.sleep(POLL_SECONDS)


async def stop(task: "asyncio.Task[None]") -> None:
    """Cancel a background task and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
