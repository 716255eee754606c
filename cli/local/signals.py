"""Stop signals as readable events, so that the supervisor handles them at a place of its choosing."""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, the usual request to end, and the end of the terminal."""

_Handler = Callable[[int, FrameType | None], Any] | int | None


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up pipe carries the signal's number."""


class StopSignals:
    """While entered, stop signals are written to a pipe instead of interrupting what runs."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._old_handlers: dict[signal.Signals, _Handler] = {}
        self._old_wakeup = -1

    def __enter__(self) -> Self:
        self._old_wakeup = signal.set_wakeup_fd(self._write)
        self._old_handlers = {number: signal.signal(number, _ignore) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a stop was requested."""
        return self._read

    def take(self) -> int:
        """Return how many stop signals arrived since the last call."""
        try:
            return sum(number in STOP_SIGNALS for number in os.read(self._read, 4096))
        except BlockingIOError:
            return 0
