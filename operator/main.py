"""The operator's program: waits for leadership, leads, and stops when it is asked to or succeeded."""

import argparse
import asyncio
import os
import signal
import socket
import sys
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from paceline import __version__
from paceline.operator.api.crd import CRD_NAME, SCHEMA_HASH_ANNOTATION, crd
from paceline.operator.config import OperatorConfig
from paceline.operator.controller import Controller
from paceline.operator.health import HealthServer
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.connection import ConnectionSettingsError, connect
from paceline.operator.kube.errors import KubeError
from paceline.operator.kube.lease import Elector, LostLeadershipError
from paceline.operator.kube.resources import CRDS
from paceline.operator.logs import set_up_logs
from paceline.operator.metrics import API_CALLS, CRD_OUTDATED, LEADER
from paceline.operator.operator_key import operator_key

_RETRY_SECONDS: Final = 5.0
CONFIG_VARIABLE: Final = "PACELINE_OPERATOR_CONFIG"
SUCCEEDED_STATUS: Final = 3
"""Exit status of an operator that lost its leadership; its successor is at work, and Kubernetes starts it anew."""


def count_call(verb: str, path: str, status: int, seconds: float) -> None:
    """Count a call to the API server by verb, kind and status."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    kind = rest[2] if len(rest) > 2 and rest[0] == "namespaces" else (rest[0] if rest else "discovery")
    API_CALLS.labels(verb=verb, kind=kind, status=str(status)).inc()


class Operator:
    """One operator process: stands by until it leads."""

    def __init__(self, config: OperatorConfig, identity: str) -> None:
        self._config = config
        self._identity = identity
        self._controller: Controller | None = None
        self.port = 0

    async def run(self, kubeconfig: Path | None, stop: asyncio.Event) -> int:
        """Run until `stop` is set or another leads; return the exit status."""
        api = await connect(kubeconfig)
        seconds = self._config.request_seconds
        health = HealthServer(alive=self._dead_parts, ready=list, observe=self._observe)
        patience = min(seconds, self._config.lease.deadline_seconds / 2)
        election_client = KubeClient(api, request_seconds=patience, observer=count_call)
        elector = Elector(election_client, self._config.lease, self._identity)
        client = KubeClient(api, request_seconds=seconds, observer=count_call, guard=elector.check)
        try:
            self.port = await health.start(self._config.http_host, self._config.http_port)
            structlog.get_logger().info("operator_started", version=__version__, port=self.port)
            if await _first_of(stop, elector.acquire()):
                return await self._lead(client, elector, stop)
            return 0
        finally:
            await health.stop()
            await api.close()

    async def _lead(self, client: KubeClient, elector: Elector, stop: asyncio.Event) -> int:
        LEADER.set(1)
        try:
            await _first_of(stop, self._work(client), elector.hold())
        except* LostLeadershipError as errors:
            structlog.get_logger().warning("leadership_lost", errors=[str(error) for error in errors.exceptions])
        finally:
            LEADER.set(0)
        if not stop.is_set():
            return SUCCEEDED_STATUS
        structlog.get_logger().info("operator_stopping")
        try:
            await elector.release()
        except KubeError as error:
            structlog.get_logger().info("lease_not_released", error=str(error))
        return 0

    async def _work(self, client: KubeClient) -> None:
        key = None
        while key is None:
            try:
                await _check_crd(client)
                key = await operator_key(client, self._config)
            except KubeError as error:
                structlog.get_logger().warning("start_delayed", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        self._controller = Controller(client, self._config, key, self._identity)
        await self._controller.run()

    def _dead_parts(self) -> list[str]:
        return (
            [] if self._controller is None else [f"watch of {kind} is dead" for kind in self._controller.dead_watches()]
        )

    def _observe(self) -> None:
        if self._controller is not None:
            self._controller.observe()


async def _check_crd(client: KubeClient) -> None:
    """Say so where the cluster's CRD is not the one that this operator was built with."""
    wanted = crd()["metadata"]["annotations"][SCHEMA_HASH_ANNOTATION]
    found = await client.get(CRDS, None, CRD_NAME)
    have = None if found is None else found["metadata"].get("annotations", {}).get(SCHEMA_HASH_ANNOTATION)
    CRD_OUTDATED.set(0 if have == wanted else 1)
    if found is None:
        raise KubeError(f"the cluster has no {CRD_NAME}; apply it: paceline crd | kubectl apply --server-side -f -")
    if have != wanted:
        structlog.get_logger().warning(
            "crd_outdated",
            name=CRD_NAME,
            schema=have,
            wanted=wanted,
            remedy="paceline crd | kubectl apply --server-side -f -",
        )


async def _first_of(stop: asyncio.Event, *works: Coroutine[Any, Any, None]) -> bool:
    """Run works until one of them ends or `stop` is set; tell whether one ended. Raises what it raised, in a group."""
    stopping = asyncio.create_task(stop.wait())
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [task for task in tasks if task.done()]
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
    errors = [error for task in ended if (error := task.exception()) is not None]
    if errors:
        raise BaseExceptionGroup("the operator failed", errors)
    return bool(ended)


async def _main(config: OperatorConfig, kubeconfig: Path | None, identity: str) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await Operator(config, identity).run(kubeconfig, stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator; the exit status is 0 after SIGTERM, 2 for a faulty configuration, 3 when succeeded."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.operator.main",
        description=__doc__,
        epilog="example: python -m paceline.operator.main --config operator.yaml --kubeconfig ~/.kube/config",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get(CONFIG_VARIABLE),
        help=f"YAML file with the operator's configuration (default: the one that {CONFIG_VARIABLE} names, or none)",
    )
    parser.add_argument("--kubeconfig", type=Path, help="reach the cluster by this file, not as a pod of it")
    parser.add_argument(
        "--identity", default=f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}", help="name in the Lease"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    options = parser.parse_args(arguments)
    set_up_logs(options.log_level)
    try:
        config = OperatorConfig.from_yaml(Path(options.config).read_text() if options.config else "")
        return asyncio.run(_main(config, options.kubeconfig, options.identity))
    except (OSError, ValueError, ConnectionSettingsError) as error:
        print(f"paceline operator: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
