"""Watches the engine cores: the newest state of each, and since when work has waited without a step."""

import asyncio
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
    moved_at: dict[int, float] = field(default_factory=dict)
    started_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.clock()

    @property
    def stalled_for(self) -> float:
        """Seconds since the slowest engine core last made a step, or last had nothing to do."""
        return self.clock() - min(self.moved_at.values(), default=self.started_at)

    @property
    def complaint(self) -> str | None:
        """What is wrong with an engine that stands still; None while it is well."""
        if self.stalled_for <= self.stall_seconds:
            return None
        seen = f"the engine has neither made a step nor said that it is idle for {self.stalled_for:.0f} s"
        return f"{seen} ({self.trouble})" if self.trouble else seen

    def note(self, answers: list[dict[str, Any]]) -> None:
        """Take in one answer of every core; a core that has work must have moved since the last time."""
        for answer in answers:
            rank, last = answer["engine"], self.states.get(answer["engine"])
            if not answer["unfinished"] or last is None or answer["step"] > last["step"]:
                self.moved_at[rank] = self.clock()
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
