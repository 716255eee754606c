"""Shows a start's progress on standard error: a live line on a terminal, plain lines elsewhere."""

import time
from typing import Final, Self

from rich.console import Console
from rich.status import Status

HEARTBEAT_SECONDS: Final = 10.0
"""How often a stage that lasts is told again where no live line can show it."""


class ProgressLine:
    """The current stage with the seconds since the start."""

    def __init__(self, console: Console, subject: str) -> None:
        self._console = console
        self._subject = subject
        self._started = time.monotonic()
        self._stage = ""
        self._told = 0.0
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    @property
    def elapsed_seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self._started

    def show(self, stage: str) -> None:
        """Show the stage, if it is new or lasts."""
        seconds, new = self.elapsed_seconds, stage != self._stage
        self._stage = stage
        text = f"{self._subject}: {stage} ({seconds:.0f} s)"
        if self._status:
            self._status.update(text)
        elif new or seconds - self._told >= HEARTBEAT_SECONDS:
            self._told = seconds
            self._console.print(text, markup=False)
