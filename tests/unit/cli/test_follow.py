"""Following an experiment over a stream of events that breaks and comes back."""

import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from rich.console import Console

from paceline.bench.protocol import ProgressEvent, ProgressKind
from paceline.cli.client import ApiClient
from paceline.cli.errors import CliError
from paceline.cli.follow import follow
from paceline.cli.instance import ApiAddress
from paceline.control_api.schemas.experiments import ExperimentStatus, ExperimentSummary


def summary(version: int, status: ExperimentStatus, kind: ProgressKind | None = None) -> ExperimentSummary:
    """Return an experiment at a moment."""
    event = kind and ProgressEvent(kind=kind, seconds=1.0, position=1, total=2, message="said so", arm="n=4", block=0)
    return ExperimentSummary.model_validate(
        {
            "id": "abc",
            "name": "x",
            "profile": "default/x",
            "status": status,
            "createdAt": "2026-01-01T00:00:00Z",
            "seed": 0,
            "progress": event,
            "version": version,
        }
    )


STARTED = summary(1, ExperimentStatus.RUNNING)
BLOCK = summary(2, ExperimentStatus.RUNNING, ProgressKind.BLOCK_STARTED)
STEADY = summary(3, ExperimentStatus.RUNNING, ProgressKind.RESIDENTS_STEADY)
DONE = summary(4, ExperimentStatus.SUCCEEDED)


class Handler(BaseHTTPRequestHandler):
    """Answers each connection with the next of some streams; a stream without an end is cut short."""

    streams: ClassVar[list[list[ExperimentSummary]]] = []

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Send one stream."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for each in self.streams.pop(0) if self.streams else []:
            self.wfile.write(f"event: progress\ndata: {each.model_dump_json(by_alias=True)}\n\n".encode())


@pytest.fixture
def client() -> Iterator[ApiClient]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with ApiClient(ApiAddress(f"http://127.0.0.1:{server.server_port}", "token")) as client:
        yield client
    server.shutdown()
    thread.join()
    server.server_close()


def followed(client: ApiClient, streams: list[list[ExperimentSummary]]) -> tuple[Any, list[str]]:
    """Follow these streams; return the last summary and the lines that were printed, without their times."""
    Handler.streams = streams
    out = io.StringIO()
    last = follow(client, STARTED, Console(file=out, width=200))
    return last, [line.partition("] ")[2] for line in out.getvalue().splitlines()]


def test_each_moment_is_printed_once_up_to_the_end(client: ApiClient) -> None:
    last, lines = followed(client, [[BLOCK, BLOCK, STEADY, DONE]])
    assert last == DONE
    assert lines == ["running", "1/2 n=4: block 1 starts", "1/2 n=4: said so", "succeeded"]


def test_a_stream_that_breaks_is_taken_up_again(client: ApiClient) -> None:
    last, lines = followed(client, [[BLOCK], [], [STEADY, DONE]])
    assert last == DONE
    assert lines[-1] == "succeeded"


def test_an_api_that_stays_away_is_told(client: ApiClient) -> None:
    with pytest.raises(CliError, match="can't be reached: the stream of events ended early"):
        followed(client, [])
