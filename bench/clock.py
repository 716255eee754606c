"""The clock of a run: one origin on the monotonic and on the wall clock, read together."""

import time
from dataclasses import dataclass

from paceline.bench.records import ClockOrigin


@dataclass(frozen=True)
class Instant:
    """A moment on both clocks: seconds since the run's origin, and Unix time."""

    seconds: float
    wall_seconds: float


class RunClock:
    """Seconds since the run began. Monotonic time measures; wall time only says when that was."""

    def __init__(self) -> None:
        self.origin = ClockOrigin(monotonic_seconds=time.monotonic(), wall_seconds=time.time())

    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self.origin.monotonic_seconds

    def now(self) -> Instant:
        """Return this moment on both clocks."""
        return Instant(self.seconds(), time.time())
