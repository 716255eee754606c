"""Follows an experiment's progress over Server-Sent Events until it ends."""

import json
import time
from collections.abc import Iterator
from typing import Final, Self

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.bench.protocol import ProgressKind
from paceline.bench.sse import EventStreamDecoder
from paceline.cli.client import ApiClient, check
from paceline.control_api.schemas.experiments import ExperimentSummary

RECONNECTS: Final = 5
SILENCE_SECONDS: Final = 60.0
"""A stream without so much as a keep-alive for that long is taken for dead."""


def follow(client: ApiClient, experiment: ExperimentSummary, console: Console) -> ExperimentSummary:
    """Show an experiment's progress until it has ended; return its last summary. Raises CliError."""
    show = _Bar(console) if console.is_terminal else _Lines(console)
    with show:
        show.update(experiment)
        for summary in _changes(client, experiment):
            experiment = summary
            show.update(experiment)
    return experiment


def _changes(client: ApiClient, experiment: ExperimentSummary) -> Iterator[ExperimentSummary]:
    """Yield each change until the end, connecting again where the stream breaks."""
    failures = 0
    while not experiment.status.ended:
        lost: httpx.TransportError = httpx.ReadError("the stream of events ended early")
        try:
            for experiment in _stream(client, experiment.id):  # noqa: B020 (the last one decides about the loop)
                failures = 0
                yield experiment
        except httpx.TransportError as error:
            lost = error
        if not experiment.status.ended:
            failures += 1
            if failures > RECONNECTS:
                raise client.unreachable(lost)
            time.sleep(0.2 * 2**failures)


def _stream(client: ApiClient, identifier: str) -> Iterator[ExperimentSummary]:
    """Yield the changes that one connection tells. Raises httpx.TransportError, and CliError where it is refused."""
    timeout = httpx.Timeout(10, read=SILENCE_SECONDS)
    decoder = EventStreamDecoder()
    with client.http.stream("GET", f"/v1/experiments/{identifier}/events", timeout=timeout) as response:
        if not response.is_success:
            response.read()
            check(response)
        for received in response.iter_bytes():
            for data in decoder.feed(received):
                yield client.read(ExperimentSummary, json.loads(data))


def moment(experiment: ExperimentSummary) -> str:
    """Return where an experiment stands, in words."""
    event = experiment.progress
    if experiment.status.ended or event is None:
        return experiment.status.value.lower()
    message = {
        ProgressKind.SETTINGS_APPLIED: "its settings are live",
        ProgressKind.BLOCK_STARTED: "a warm-up block starts"
        if event.warm_up
        else f"block {(event.block or 0) + 1} starts",
    }.get(event.kind, event.message)
    return f"{event.arm}: {message}" if event.arm else message


class _Lines:
    """Progress as plain lines, one for each moment."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave everything as it is."""

    def update(self, experiment: ExperimentSummary) -> None:
        """Print the present moment, unless it was printed."""
        event = experiment.progress
        done = f"{event.position}/{event.total} " if event else ""
        text = f"{done}{moment(experiment)}"
        if text != self._last:
            self._last = text
            self._console.print(f"[{time.monotonic() - self._started:5.0f} s] {text}", markup=False)


class _Bar:
    """Progress as a live bar."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            # Drawing takes processor time from the engine that is measured.
            refresh_per_second=1,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, experiment: ExperimentSummary) -> None:
        """Show the present moment."""
        event = experiment.progress
        self._progress.update(
            self._task,
            description=moment(experiment),
            completed=event.position if event else 0,
            total=event.total if event else None,
        )
