"""Long-running commands, each with its own log, that never outlive the program that started them."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed.waiting import wait_until

LOG_TAIL_LINES = 40

# Linux ties the death signal to the thread that started the child, so all are started by one that lives to the end.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="testbed-starter")


class ProcessDiedError(RuntimeError):
    """A process ended that should be running."""


class Process:
    """One command: start it, wait for its readiness, pause it, stop it, read its log.

    With `outlives_parent` it goes on when this program ends; otherwise the kernel kills it, however the program ends.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[object],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        outlives_parent: bool = False,
    ) -> None:
        self.name = name
        self.argv = [str(word) for word in argv]
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._outlives_parent = outlives_parent
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises ProcessDiedError when it was never started."""
        if self._process is None:
            message = f"{self.name} was not started"
            raise ProcessDiedError(message)
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the command, its output appended to the log."""
        guard = [] if self._outlives_parent else ["setpriv", "--pdeathsig", "KILL", "--"]
        with self.log.open("ab") as log:
            self._process = _starter.submit(
                subprocess.Popen,
                [*guard, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # Ctrl-C is for the program at the terminal: it then stops its processes in order.
                start_new_session=True,
            ).result()

    def wait_ready(self, probe: Callable[[], bool], seconds: float) -> None:
        """Wait until `probe` returns True.

        Raises:
            ProcessDiedError: the process ended meanwhile; the message holds the end of its log.
            DeadlineError: it took longer than `seconds`; the message holds the end of its log.
        """

        def ready() -> bool:
            self.check()
            return probe()

        wait_until(ready, f"{self.name} ready", seconds=seconds, details=self.log_tail)

    def check(self) -> None:
        """Raise ProcessDiedError, with the end of the log, unless the process is running."""
        if not self.running:
            status = None if self._process is None else self._process.returncode
            message = f"{self.name} ended with status {status}\n{self.log_tail()}"
            raise ProcessDiedError(message)

    def log_tail(self) -> str:
        """Return the end of the log under a heading."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.name}: the end of {self.log} ---", *lines[-LOG_TAIL_LINES:]])

    def pause(self) -> None:
        """Freeze the process: it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, *, grace_seconds: float = 5) -> None:
        """Ask the process to end, and kill it if it has not after `grace_seconds`."""
        if self._process is None:
            return
        if self.running:
            self.resume()
            self._process.terminate()
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
