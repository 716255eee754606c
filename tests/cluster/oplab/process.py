"""The operator as the process that the chart starts."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from oplab.operator import operator_config
from testbed import PROBE, wait_until
from testbed.ports import free_ports


@dataclass
class OperatorProcess:
    """A running `python -m paceline.operator.main`."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str

    def health(self, path: str = "/healthz") -> httpx.Response:
        return PROBE.get(f"{self.url}{path}")

    @property
    def is_up(self) -> bool:
        try:
            return self.health().status_code == 200
        except httpx.TransportError:
            return False

    def lines(self, event: str) -> list[str]:
        """Return the lines of the log that tell of an event."""
        return [line for line in self.log.read_text().splitlines() if f'"event": "{event}"' in line]

    @property
    def leads(self) -> bool:
        return bool(self.lines("caches_filled"))


@contextmanager
def operator_process(
    folder: Path,
    kubeconfig: Path,
    admin_port: int,
    space: str,
    identity: str,
    *,
    log_level: str = "debug",
    **changes: Any,
) -> Iterator[OperatorProcess]:
    """Have an operator's process within the block; it is killed at the end if it still runs."""
    (port,) = free_ports(1)
    config = operator_config(
        admin_port,
        [space],
        **{"httpHost": "127.0.0.1", "httpPort": port, "lease": {"namespace": space}, **changes},
    )
    file = folder / f"{identity}.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(by_alias=True, mode="json")))
    log = folder / f"{identity}.log"
    arguments = ("--config", file, "--kubeconfig", kubeconfig, "--identity", identity, "--log-level", log_level)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "paceline.operator.main", *arguments], stdout=output, stderr=output
        )
    operator = OperatorProcess(process, log, f"http://127.0.0.1:{port}")
    try:
        wait_until(
            lambda: operator.is_up or process.poll() is not None,
            f"{identity} answers",
            seconds=90,
            details=log.read_text,
        )
        yield operator
    finally:
        process.kill()
        process.wait()
