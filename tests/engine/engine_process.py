"""Starts a real vLLM engine on CPU as `paceline up` does, and ends it with everything that it started."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.v1alpha1 import InferenceProfileSpec
from paceline.operator.specs.engine_command import EngineLaunch, engine_command, settings_document

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-engine-0.32" / "bin" / "python"
END_WITH_PARENT = (
    sys.executable,
    "-c",
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Runs a command that gets SIGTERM when this process dies: a test run that is killed leaves no engine behind."""
TOKEN = "a-token-for-tests-only"
START_SECONDS = 1_800
"""An engine is up in half a minute on a quiet machine; a build beside it may take most of the machine."""
TEST_ENV = {
    "PACELINE_STALL_SECONDS": "60",
    # vLLM would pin every engine of the machine to the same core; and two threads that wait for each other on a busy
    # machine are slower than one.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
FRESH = httpx.Limits(max_keepalive_connections=0)
"""A server ends connections that were idle for a few seconds, at times just when the next request is on its way."""
PROBE = httpx.Client(trust_env=False, timeout=5, limits=FRESH)
"""One client for all questions whether something is up: making one costs 30 ms of a core, every time."""
MAX_NUM_BATCHED_TOKENS = 512
UNPACED = LiveSettings()


def model_folder() -> Path:
    """Make the tiny model if need be, and return its folder."""
    done = subprocess.run(["bash", str(ROOT / "scripts/model.sh")], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip().splitlines()[-1])


def tiny_spec(**engine: Any) -> InferenceProfileSpec:
    """Return a profile of the tiny model, with fields of spec.engine replaced."""
    return InferenceProfileSpec.model_validate(
        {
            "model": {"source": f"file://{model_folder()}", "servedName": "tiny", "maxModelLen": 32_768},
            "engine": {
                "accelerator": "CPU",
                "maxNumBatchedTokens": MAX_NUM_BATCHED_TOKENS,
                "maxNumSeqs": 8,
                "kvCache": {"sizeGibibytes": 1},
                "extraArgs": ["--enforce-eager"],
            }
            | engine,
        }
    )


def free_ports(count: int) -> list[int]:
    """Return ports that are free now; nothing holds them until the engine does."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [taken.getsockname()[1] for taken in sockets]


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds. Raises TimeoutError that says what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    base_url: str
    admin_url: str
    token: str
    log_path: Path
    settings_file: Path
    process: "subprocess.Popen[bytes]"

    def admin(self, timeout: float = 120) -> httpx.Client:
        """Return a client of the admin port that carries the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.admin_url, headers=headers, timeout=timeout)

    def is_ready(self) -> bool:
        """Tell whether the engine serves. Raises RuntimeError with the end of the log when it has died."""
        if self.process.poll() is not None:
            raise RuntimeError(
                f"the engine ended with {self.process.returncode}:\n{self.log_path.read_text()[-3_000:]}"
            )
        try:
            health = PROBE.get(f"{self.base_url}/health")
            return health.is_success and PROBE.get(f"{self.admin_url}/readyz").is_success
        except httpx.TransportError:
            return False


@dataclass(frozen=True)
class Launch:
    """What a start needs: files in `folder`, a profile, the first settings, the environment of tests, a vLLM."""

    folder: Path
    spec: InferenceProfileSpec
    settings: LiveSettings = UNPACED
    env: Mapping[str, str] | None = None
    python: Path = PYTHON

    def write_files(self) -> tuple[Path, Path]:
        """Write the token and the settings."""
        token, settings = self.folder / "token", self.folder / "settings.json"
        token.write_text(TOKEN + "\n")
        settings.write_text(settings_document(self.settings))
        return token, settings


def spawn(launch: Launch, *, admin_port: int | None = None) -> Engine:
    """Start an engine in a process group of its own, without waiting for it.

    Not in a session of its own: Linux shares the cores out by session (autogroup), and one with a spinning engine was
    seen to keep this one waiting for 10 s, while its requests ran to their end.
    """
    token, settings = launch.write_files()
    port, free_admin_port = free_ports(2)
    admin_port = admin_port or free_admin_port
    command = engine_command(
        launch.spec,
        EngineLaunch(
            python=str(launch.python),
            host="127.0.0.1",
            port=port,
            admin_host="127.0.0.1",
            admin_port=admin_port,
            admin_token_file=str(token),
            settings_file=str(settings),
        ),
    )
    log = launch.folder / "engine.log"
    env = os.environ | command.env | TEST_ENV | dict(launch.env or {})
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*END_WITH_PARENT, *command.argv],
            env=env,
            cwd=launch.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    return Engine(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", TOKEN, log, settings, process)


def end(engine: Engine) -> None:
    """End the engine's whole process group, first gently."""
    for sign, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 30)):
        try:
            os.killpg(engine.process.pid, sign)
        except ProcessLookupError:
            break
        try:
            engine.process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    engine.process.wait(30)


@contextmanager
def running(launch: Launch) -> Iterator[Engine]:
    """Run an engine until the block ends."""
    engine = spawn(launch)
    try:
        wait_for(engine.is_ready, START_SECONDS, "the engine is ready")
        yield engine
    finally:
        end(engine)
