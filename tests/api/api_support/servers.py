"""Real uvicorn servers on loopback, in a thread of this process or in a process of their own."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.types import ASGIApp

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 180


def wait_until(condition, what: str, seconds: float = START_SECONDS):
    """Return the first true value of `condition()`; fail when none came in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {seconds} s")


@contextmanager
def serve(app: ASGIApp, port: int = 0) -> Iterator[str]:
    """Serve an app from a thread and yield its address."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2, timeout_keep_alive=60))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server's start")
        assert server.started, "the server did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


PROBE = httpx.Client(trust_env=False, timeout=5, limits=httpx.Limits(max_keepalive_connections=0))
"""One client for all questions whether something is up: making one costs 30 ms of a core, every time."""


class ApiProcess:
    """`python -P -m paceline.control_api` with its output in a file."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "paceline.control_api"],
                env={**kept, "PACELINE_API_PORT": str(self.port), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> "ApiProcess":
        """Wait until it serves; fail with its output when it ends instead."""

        def ready() -> bool:
            assert self.process.poll() is None, f"the control API ended:\n{self.log.read_text()}"
            try:
                return PROBE.get(f"{self.url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, "the control API's readiness")
        return self

    def stop(self) -> int:
        """Stop it as Ctrl-C does and return its exit status."""
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        """Kill it as the kernel does when memory runs out."""
        self.process.kill()
        self.process.wait(30)
