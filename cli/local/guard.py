"""The guard: a small process between `paceline up` and a child, so that no process survives the death of `up`.

Run by its path with `python -I guard.py GRACE_SECONDS -- COMMAND...`; needs the standard library only. Its standard
input is a pipe that only `up` holds open. The letter `s` there asks the command to stop (SIGTERM), and what is left
after GRACE_SECONDS is killed; `k` kills at once. The end of the input means that `up` is gone, even by SIGKILL, and
counts as `s`. As the subreaper of its descendants the guard also finds those that moved to other process groups.

Reports on standard output, one line each: `started PID` or `failed MESSAGE`, then `exited STATUS` (negative for a
signal) when the command has ended. The end of the output says that no descendant is left either.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STRAGGLER_SECONDS = 3.0
"""How long the descendants of a command that has ended may take to end by themselves."""


def prctl(option: int, argument: int) -> None:
    """Call prctl(2). Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def report(line: str) -> None:
    """Tell `up` something; that nobody listens any more is no reason to stop guarding."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())


def children() -> list[int]:
    """Return the process ids of this process's children, which after the command's end are all descendants."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The command's name, in parentheses, may hold spaces: the parent's id is the second field after it.
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                    found.append(int(folder.name))
    return found


def reap() -> dict[int, int]:
    """Collect the children that have ended: their exit statuses by process id."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


class Guard:
    """Watches one command until neither it nor any descendant is left."""

    def __init__(self, process: int, grace_seconds: float) -> None:
        self.process = process
        self.grace_seconds = grace_seconds
        self.status: int | None = None
        self.deadline: float | None = None

    def stop(self) -> None:
        """Ask the command to end; what is left after the grace is killed."""
        if self.deadline is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGTERM)
            self.deadline = time.monotonic() + self.grace_seconds

    def kill(self) -> None:
        """End everything now."""
        self.deadline = time.monotonic()

    def step(self) -> bool:
        """Reap and, past the deadline, kill. Return whether any descendant is left."""
        ended = reap()
        if self.process in ended:
            self.status = ended[self.process]
            report(f"exited {self.status}")
            limit = time.monotonic() + STRAGGLER_SECONDS
            self.deadline = limit if self.deadline is None else min(limit, self.deadline)
        if self.deadline is not None and time.monotonic() >= self.deadline:
            for process in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        return self.status is None or bool(children())


def watch(guard: Guard) -> None:
    """Run until no descendant is left, woken by the end of standard input, by signals, and four times a second."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while guard.step():
            for key, _ in selector.select(timeout=0.25):
                if key.fd == wake_read:
                    if {signal.SIGTERM, signal.SIGINT} & set(os.read(wake_read, 64)):
                        guard.stop()
                    continue
                orders = os.read(0, 64)
                if b"k" in orders:
                    guard.kill()
                else:
                    guard.stop()
                if not orders:
                    selector.unregister(0)


def main(arguments: list[str]) -> int:
    """Start the command and guard it. Return 0; what became of the command is in the report."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            arguments[2:],
            stdin=subprocess.DEVNULL,
            stdout=2,
            process_group=0,
            # The guard itself may be killed: then at least the command gets the signal that stops it in order.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 (no threads here)
        )
    except OSError as error:
        report(f"failed {error.strerror}: {error.filename}")
        return 0
    report(f"started {child.pid}")
    guard = Guard(child.pid, float(arguments[0]))
    watch(guard)
    child.returncode = guard.status  # collected by `reap`, behind the Popen object's back
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
