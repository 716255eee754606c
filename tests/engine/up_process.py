"""Runs `paceline up` as a process in a place of its own, and knows every process that belongs to it."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv" / "bin"
DEADLINE_SECONDS = 120.0
ENGINE_SECONDS = 1_800.0
"""How long a real engine may take to start: half a minute on a quiet machine, far longer beside others."""

PROFILE = """\
apiVersion: paceline.dev/v1alpha1
kind: InferenceProfile
metadata: {{name: {name}}}
spec:
  model: {{source: "file://{model}", servedName: tiny}}
  engine: {{accelerator: CPU}}
  pacing: {{mode: Fixed, interval: 2}}
"""


class Up:
    """A running `paceline up`: its output, line by line, and the processes that it starts."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [BIN / "paceline", "up", *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.seen: dict[int, psutil.Process] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.lines.extend(line.rstrip("\n") for line in output)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until `up` has printed a text."""
        wait_until(lambda: text in self.text or self.process.poll() is not None, lambda: self.text, seconds)
        assert text in self.text, self.text
        self.note_processes()

    def note_processes(self) -> None:
        """Remember every process that belongs to the run now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen |= {each.pid: each for each in psutil.Process(self.process.pid).children(recursive=True)}

    def wait(self) -> int:
        """Return the exit status."""
        status = self.process.wait(DEADLINE_SECONDS)
        self._reader.join()
        return status

    def assert_nothing_left(self) -> None:
        """Check that every process that was seen has ended."""
        assert self.seen
        wait_until(lambda: not any(alive(each) for each in self.seen.values()), lambda: str(self.seen))


def alive(process: psutil.Process) -> bool:
    """Tell whether a process runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(
    condition: Callable[[], object], tell: Callable[[], str] = str, seconds: float = DEADLINE_SECONDS
) -> None:
    """Wait until a condition holds, or fail with what `tell` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


class Place:
    """A state folder of its own, a model's folder, and a scripted engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        (self.model / "model.safetensors").touch()
        engine = folder / "fake-python"
        engine.write_text(f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).with_name("up_fake_engine.py")} "$@"\n')
        engine.chmod(0o755)
        self.profile = folder / "profile.yaml"
        self.profile.write_text(PROFILE.format(name="tiny", model=self.model))
        self.env = {**os.environ, "PACELINE_STATE_DIR": str(self.state), "PACELINE_ENGINE_PYTHON": str(engine)}
        self.started: list[Up] = []

    def up(self, *arguments: str, ports: bool = True, **env: str) -> Up:
        """Start `paceline up` on free ports."""
        free = ["--port", "0", "--admin-port", "0", "--api-port", "0"] if ports else []
        started = Up([str(self.profile), *free, *arguments], self.env | env)
        self.started.append(started)
        return started

    def paceline(self, *arguments: str, seconds: float = DEADLINE_SECONDS) -> subprocess.CompletedProcess[str]:
        """Run another command to its end."""
        return subprocess.run(
            [BIN / "paceline", *arguments], env=self.env, capture_output=True, text=True, timeout=seconds
        )

    def end(self) -> None:
        """Kill what still runs, and check that nothing of it is left."""
        for up in self.started:
            up.note_processes()
            up.process.kill()
            up.wait()
            if up.seen:
                up.assert_nothing_left()

    def run_file(self) -> dict[str, Any]:
        """Return the run file's content."""
        return dict(json.loads((self.state / "default" / "tiny" / "run.json").read_text()))
