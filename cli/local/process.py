"""A child process behind its guard (guard.py): started, watched, and stopped with everything that it started."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from paceline.cli.local import guard

GUARD_FILE: Final = str(Path(guard.__file__).absolute())


class Child:
    """A running command. `pid` is its process id, `status` its exit status (negative for a signal) once it ended."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        grace_seconds: float,
        keep_open: Sequence[int] = (),
    ) -> None:
        """Start the command in a session of its own, with its output appended to `log`.

        The guard, not the command, inherits the descriptors `keep_open`.
        """
        self.name = name
        self.pid: int | None = None
        self.status: int | None = None
        self.failure: str | None = None
        self.gone = False
        self._unread = b""
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", GUARD_FILE, str(grace_seconds), "--", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(env),
                cwd=log.parent,
                start_new_session=True,
                pass_fds=keep_open,
            )
        assert self._guard.stdout is not None
        self._reports = self._guard.stdout.fileno()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is news of the child."""
        return self._reports

    @property
    def ended(self) -> bool:
        """Whether the command itself has ended; descendants of it may be left until `gone`."""
        return self.gone or self.status is not None

    def read_reports(self) -> None:
        """Take in the guard's reports, waiting for at least one of them."""
        data = os.read(self._reports, 4096)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "started":
                self.pid = int(rest)
            elif word == "exited":
                self.status = int(rest)
            elif word == "failed":
                self.failure = rest
        if not data:
            self._close()

    def stop(self) -> None:
        """Ask the child to stop; after the grace it and all its descendants are killed. Returns at once."""
        self._order(b"s")

    def kill(self) -> None:
        """Kill the child and all its descendants. Returns at once."""
        self._order(b"k")

    def _order(self, letter: bytes) -> None:
        assert self._guard.stdin is not None
        if not self.gone:
            # A guard that has just ended reads nothing more, and needs no order.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._guard.stdin.fileno(), letter)

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Wait until neither the child nor any descendant is left. Return whether that came true in time."""
        deadline = time.monotonic() + timeout_seconds
        with selectors.DefaultSelector() as selector:
            if not self.gone:
                selector.register(self._reports, selectors.EVENT_READ)
            while not self.gone and (left := deadline - time.monotonic()) > 0:
                if selector.select(left):
                    self.read_reports()
        return self.gone

    def _close(self) -> None:
        # The end of the reports is the end of the guard. Killed itself, it leaves the command to its death signal.
        self.gone = True
        code = self._guard.wait()
        if self.status is None and self.failure is None:
            self.failure = f"its guard process ended with status {code}"
            self._kill_group()
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()

    def _kill_group(self) -> None:
        if self.pid is not None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
