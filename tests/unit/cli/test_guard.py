"""Nothing that a guarded command started may be left, whoever dies in whatever way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from paceline.cli.local.process import Child

DEADLINE_SECONDS = 20.0

# Starts a descendant in a session of its own, as worker processes do, then says that all is set up.
COMMAND = """
import signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code, "{marker}"], start_new_session=True)
print("set up", flush=True)
time.sleep(600)
"""

# Plays `paceline up`: starts a guarded command and waits to be killed.
PARENT = """
import os, sys, time
from pathlib import Path
from paceline.cli.local.process import Child
Child("x", sys.argv[2:], env=os.environ, log=Path(sys.argv[1]), grace_seconds=0.5)
time.sleep(600)
"""


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


def marked(marker: str) -> list[int]:
    """Return the processes that carry the marker in their command line."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE and marker in " ".join(process.info["cmdline"] or ())
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def start(log: Path, *arguments: str, grace_seconds: float = 0.5) -> tuple[Child, str]:
    """Start the command and wait until its descendant runs."""
    marker = f"marker-{log.parent.name}-{os.getpid()}"
    argv = [sys.executable, "-c", COMMAND.format(marker=marker), *arguments]
    child = Child("x", argv, env=os.environ, log=log, grace_seconds=grace_seconds)
    wait_until(lambda: "set up" in log.read_text())
    return child, marker


def test_a_stop_ends_the_command_and_what_it_started(log: Path) -> None:
    child, marker = start(log)
    child.stop()
    assert child.wait_gone(DEADLINE_SECONDS)
    assert child.status == -signal.SIGTERM
    assert marked(marker) == []


def test_a_command_that_does_not_stop_is_killed_after_its_grace(log: Path) -> None:
    child, marker = start(log, "deaf")
    child.stop()
    assert child.wait_gone(DEADLINE_SECONDS)
    assert child.status == -signal.SIGKILL
    assert marked(marker) == []


def test_a_kill_cuts_the_grace_short(log: Path) -> None:
    child, marker = start(log, "deaf", grace_seconds=3600)
    child.stop()
    child.kill()
    assert child.wait_gone(DEADLINE_SECONDS)
    assert child.status == -signal.SIGKILL
    assert marked(marker) == []


def test_the_death_of_the_command_ends_what_it_started(log: Path) -> None:
    child, marker = start(log)
    wait_until(lambda: child.pid is not None or child.read_reports())
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait_gone(DEADLINE_SECONDS)
    assert child.status == -signal.SIGKILL
    assert marked(marker) == []


@pytest.mark.parametrize("arguments", [(), ("deaf",)], ids=["stops", "does not stop"])
def test_kill_9_of_the_parent_leaves_no_orphan(log: Path, arguments: tuple[str, ...]) -> None:
    log.touch()
    marker = f"marker-{log.parent.name}-{os.getpid()}"
    command = [sys.executable, "-c", COMMAND.format(marker=marker), *arguments]
    with subprocess.Popen([sys.executable, "-c", PARENT, str(log), *command]) as parent:
        wait_until(lambda: "set up" in log.read_text())
        parent.kill()
    wait_until(lambda: not marked(marker))


def test_kill_9_of_the_guard_still_ends_the_command(log: Path) -> None:
    child, marker = start(log)
    wait_until(lambda: child.pid is not None or child.read_reports())
    assert child.pid is not None
    command = psutil.Process(child.pid)
    command.parent().kill()
    assert child.wait_gone(DEADLINE_SECONDS)
    assert "its guard process ended" in str(child.failure)
    wait_until(lambda: not command.is_running() or command.status() == psutil.STATUS_ZOMBIE)
    # The descendant had left the process group: without its guard nobody knows of it. This test ends it itself.
    for pid in marked(marker):
        os.kill(pid, signal.SIGKILL)


def test_exit_statuses_and_missing_commands_are_reported(log: Path) -> None:
    ended = Child("x", [sys.executable, "-c", "raise SystemExit(3)"], env=os.environ, log=log, grace_seconds=1)
    assert ended.wait_gone(DEADLINE_SECONDS)
    assert (ended.status, ended.failure) == (3, None)
    missing = Child("x", ["/nowhere/python"], env=os.environ, log=log, grace_seconds=1)
    assert missing.wait_gone(DEADLINE_SECONDS)
    assert (missing.status, missing.failure) == (None, "No such file or directory: /nowhere/python")
