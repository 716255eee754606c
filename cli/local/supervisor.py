"""Runs the engine and the control API of one profile side by side, from their start to the last process's end."""

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from paceline.cli.local.diagnose import Diagnosis, diagnose
from paceline.cli.local.lock import InstanceLock
from paceline.cli.local.logs import LogTail, last_lines
from paceline.cli.local.process import Child
from paceline.cli.local.progress import ProgressLine
from paceline.cli.local.readiness import Progress, answers
from paceline.cli.local.signals import StopSignals
from paceline.cli.local.state import ProfileState, RunRecord

TICK_SECONDS: Final = 0.25
API_RESTARTS: Final = 3
API_RESTART_WINDOW_SECONDS: Final = 60.0
API_GRACE_SECONDS: Final = 10.0
KILL_SECONDS: Final = 20.0
"""How long the kernel may take to end killed processes, far more than it needs."""


@dataclass(frozen=True)
class Command:
    """A command line with its whole environment."""

    argv: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Launch:
    """Everything that a run needs."""

    state: ProfileState
    record: RunRecord
    engine: Command
    api: Command
    start_timeout_seconds: float
    engine_grace_seconds: float


class StopRequestedError(Exception):
    """A stop signal arrived."""


@dataclass
class RunFailedError(Exception):
    """A part of the run ended or did not come up."""

    diagnosis: Diagnosis
    log: Path


@dataclass
class Supervisor:
    """One run. `on_ready` is called once everything answers."""

    launch: Launch
    lock: InstanceLock
    signals: StopSignals
    console: Console
    on_ready: Callable[[RunRecord, float], None]
    engine: Child | None = None
    api: Child | None = None
    ready: bool = False
    api_deaths: list[float] = field(default_factory=list)
    record: RunRecord = field(init=False)

    def __post_init__(self) -> None:
        self.record = self.launch.record

    def run(self) -> bool:
        """Run until a stop signal; return whether the stop was orderly. Raises RunFailedError."""
        try:
            self._start()
            self._wait_ready()
            while True:
                self._wait_for_news(None)
        except StopRequestedError:
            self.console.print("stopping (Ctrl-C again stops at once)", markup=False)
        finally:
            orderly = self._stop_all()
        return orderly

    def _start(self) -> None:
        state = self.launch.state
        self.engine = self._spawn("the engine", self.launch.engine, state.engine_log, self.launch.engine_grace_seconds)
        self._write_record(engine_pid=self.engine.pid)
        self.api = self._spawn("the control API", self.launch.api, state.api_log, API_GRACE_SECONDS)
        self._write_record(api_pid=self.api.pid)

    def _spawn(self, name: str, command: Command, log: Path, grace_seconds: float) -> Child:
        child = Child(
            name,
            command.argv,
            env=command.env,
            log=log,
            grace_seconds=grace_seconds,
            keep_open=[self.lock.descriptor],
        )
        while child.pid is None and not child.gone:
            child.read_reports()
        if child.gone:
            raise self._failure(child, log)
        return child

    def _write_record(self, **update: object) -> None:
        self.record = self.record.model_copy(update=update)
        self.launch.state.write_run(self.record)
        self.launch.state.write_engine(self.record)

    def _wait_ready(self) -> None:
        record, progress = self.launch.record, Progress()
        waiting = {
            "the engine's OpenAI API": f"{record.engine_url}/health",
            "the engine's admin port": f"{record.admin_url}/readyz",
            "the control API": f"{record.api_url}/readyz",
        }
        with (
            LogTail(self.launch.state.engine_log) as tail,
            ProgressLine(self.console, self.launch.state.key) as line,
            httpx.Client(timeout=2, trust_env=False) as client,
        ):
            while True:
                for text in tail.lines():
                    progress = progress.after(text)
                waiting = {what: url for what, url in waiting.items() if not answers(client, url)}
                if not waiting:
                    break
                engine_is_up = not any("engine" in what for what in waiting)
                line.show("waiting for the control API" if engine_is_up else progress.stage)
                self._wait_for_news(TICK_SECONDS)
                if line.elapsed_seconds > self.launch.start_timeout_seconds:
                    raise self._timed_out(list(waiting), progress)
        self.ready = True
        self._write_record(ready_at=datetime.now(UTC).isoformat())
        self.on_ready(self.record, line.elapsed_seconds)

    def _wait_for_news(self, timeout_seconds: float | None) -> None:
        """Wait for a stop signal or the end of a child. Raises StopRequestedError and RunFailedError."""
        assert self.engine is not None
        assert self.api is not None
        with selectors.DefaultSelector() as selector:
            for source in (self.signals, self.engine, self.api):
                selector.register(source, selectors.EVENT_READ)
            for key, _ in selector.select(timeout_seconds):
                if isinstance(key.fileobj, Child):
                    key.fileobj.read_reports()
        if self.signals.take():
            raise StopRequestedError
        if self.engine.ended:
            raise self._failure(self.engine, self.launch.state.engine_log)
        if self.api.ended:
            self._restart_api(self.api)

    def _restart_api(self, dead: Child) -> None:
        now = time.monotonic()
        self.api_deaths = [*(death for death in self.api_deaths if now - death < API_RESTART_WINDOW_SECONDS), now]
        failure = self._failure(dead, self.launch.state.api_log)
        if not self.ready or len(self.api_deaths) > API_RESTARTS:
            raise failure
        self.console.print(f"warning: {failure.diagnosis.summary}; starting it again", markup=False)
        dead.wait_gone(KILL_SECONDS)
        self.api = self._spawn("the control API", self.launch.api, self.launch.state.api_log, API_GRACE_SECONDS)
        self._write_record(api_pid=self.api.pid)

    def _failure(self, child: Child, log: Path) -> RunFailedError:
        lines = last_lines(log)
        if child.status is None and child.failure is not None:
            return RunFailedError(Diagnosis(f"{child.name} ended: {child.failure}", None, tuple(lines[-3:])), log)
        return RunFailedError(diagnose(child.name, child.status, lines, ready=self.ready), log)

    def _timed_out(self, waiting: Sequence[str], progress: Progress) -> RunFailedError:
        limit = self.launch.start_timeout_seconds
        summary = f"{', '.join(waiting)} did not answer within {limit:.0f} s (last seen: {progress.stage})"
        advice = "Give it longer with --start-timeout."
        log = self.launch.state.engine_log
        return RunFailedError(Diagnosis(summary, advice, tuple(last_lines(log)[-5:])), log)

    def _stop_all(self) -> bool:
        """Stop the control API, then the engine. Return False if a second stop signal cut that short."""
        orderly = True
        for child, grace_seconds in ((self.api, API_GRACE_SECONDS), (self.engine, self.launch.engine_grace_seconds)):
            if child is not None and not child.gone:
                if orderly:
                    child.stop()
                else:
                    child.kill()
                orderly = self._wait_stopped(child, grace_seconds + KILL_SECONDS) and orderly
        self.launch.state.forget_run()
        return orderly

    def _wait_stopped(self, child: Child, timeout_seconds: float) -> bool:
        deadline, orderly = time.monotonic() + timeout_seconds, True
        while not child.gone and time.monotonic() < deadline:
            with selectors.DefaultSelector() as selector:
                selector.register(self.signals, selectors.EVENT_READ)
                selector.register(child, selectors.EVENT_READ)
                ready = [key.fileobj for key, _ in selector.select(TICK_SECONDS)]
            if child in ready:
                child.read_reports()
            if self.signals.take():
                orderly = False
                self.console.print("stopping at once", markup=False)
                child.kill()
        return orderly
