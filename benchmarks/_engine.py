"""A real engine for a benchmark: started as `paceline up` does, ended with everything that it started."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from _common import ENGINE_PYTHON, ROOT

from paceline.bench.engine import EngineAddress
from paceline.bench.plan import Arm
from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.v1alpha1 import InferenceProfileSpec
from paceline.operator.specs.engine_command import EngineLaunch, engine_command, settings_document

START_SECONDS = 1_800
ONE_PROCESS: Final = ("--distributed-executor-backend", "uni")
ONE_PROCESS_ENV: Final = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Has the model run in the engine core's process, which else spins on a core of its own while a worker computes.

On a CPU vLLM 0.32 heeds the argument only beside the variable, which the API server ignores otherwise.
"""
PROBE = httpx.Client(trust_env=False, timeout=5, limits=httpx.Limits(max_keepalive_connections=0))
"""One client for all questions whether something is up: making one costs 30 ms of a core, every time."""


def example_spec(example: str, model_script: str) -> dict[str, Any]:
    """Return `spec` of a profile in examples/ as it is written, with the model that a script makes."""
    command = ["bash", str(ROOT / "scripts" / model_script)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    spec: dict[str, Any] = yaml.safe_load((ROOT / "examples" / example).read_text())["spec"]
    spec["model"]["source"] = f"file://{done.stdout.strip().splitlines()[-1]}"
    return spec


@dataclass
class BenchmarkEngine:
    """A running engine; `apply` puts an arm's settings live."""

    address: EngineAddress
    settings: LiveSettings

    async def apply(self, arm: Arm) -> int:
        """Put an arm's settings live and return the revision once the engine runs it."""
        self.settings = LiveSettings(revision=self.settings.revision + 1, pacing=arm.pacing, coalescing=arm.coalescing)
        headers = {"Authorization": f"Bearer {self.address.admin_token}"}
        async with httpx.AsyncClient(headers=headers, timeout=120, trust_env=False) as client:
            body = self.settings.model_dump(mode="json", by_alias=True, exclude_none=True)
            answer = await client.put(f"{self.address.admin_url}/paceline/v1/settings", json=body)
            answer.raise_for_status()
        return self.settings.revision


@contextmanager
def running_engine(
    spec: InferenceProfileSpec, folder: Path, scheduler: str | None = None, env: Mapping[str, str] | None = None
) -> Iterator[BenchmarkEngine]:
    """Run an engine until the block ends, its files in a folder that is made; `scheduler` replaces Paceline's.

    Raises RuntimeError when it dies.
    """
    folder.mkdir(exist_ok=True)
    port, admin_port = _free_ports(2)
    token, settings = secrets.token_hex(16), LiveSettings()
    (folder / "token").write_text(token)
    (folder / "settings.json").write_text(settings_document(settings))
    launch = EngineLaunch(
        python=str(ENGINE_PYTHON),
        host="127.0.0.1",
        port=port,
        admin_host="127.0.0.1",
        admin_port=admin_port,
        admin_token_file=str(folder / "token"),
        settings_file=str(folder / "settings.json"),
    )
    command = engine_command(spec, launch)
    argv = list(command.argv)
    if scheduler is not None:
        argv[argv.index("--scheduler-cls") + 1] = scheduler
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the engine is ended, too
    log = folder / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            env=os.environ | command.env | dict(env or {}),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # a session of its own would be scheduled apart: tests/engine/engine_process.py
        )
    address = EngineAddress(f"http://127.0.0.1:{port}", admin_url=f"http://127.0.0.1:{admin_port}", admin_token=token)
    try:
        _wait(process, address, log)
        yield BenchmarkEngine(address, settings)
    finally:
        _end(process)


def _wait(process: "subprocess.Popen[bytes]", address: EngineAddress, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the engine ended with {process.returncode}:\n{log.read_text()[-3_000:]}")
        try:
            if all(PROBE.get(url).is_success for url in (f"{address.url}/health", f"{address.admin_url}/readyz")):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the engine did not start within {START_SECONDS} s; its log ends:\n{log.read_text()[-3_000:]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(30)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [taken.getsockname()[1] for taken in sockets]
