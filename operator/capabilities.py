"""Which optional APIs the cluster serves: LeaderWorkerSet, and the Prometheus operator's PodMonitor."""

import time
from collections.abc import Callable
from typing import Any

import structlog

from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.resources import POD_MONITORS, WORKER_SETS, Resource


class Capabilities:
    """Asks the API server once, and again after a time as long as something that is needed is missing.

    `on_found` is told of an API when it is first seen, so that its objects are watched.
    """

    def __init__(
        self,
        client: KubeClient,
        on_found: Callable[[Resource], None],
        *,
        ask_again_seconds: float = 60,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._on_found = on_found
        self._ask_again_seconds = ask_again_seconds
        self._clock = clock
        self._found: set[Resource] = set()
        self._asked: dict[Resource, float] = {}

    async def has_worker_sets(self, *, needed: bool) -> bool:
        """Tell whether the LeaderWorkerSet API is there; asks only where it is `needed`."""
        return await self._serves(WORKER_SETS) if needed else WORKER_SETS in self._found

    async def has(self, manifest: dict[str, Any]) -> bool:
        """Tell whether the API of an object is there; every API but the PodMonitor's is part of Kubernetes."""
        return manifest["kind"] != POD_MONITORS.kind or await self._serves(POD_MONITORS)

    async def _serves(self, resource: Resource) -> bool:
        if resource in self._found:
            return True
        asked = self._asked.get(resource)
        if asked is not None and self._clock() - asked < self._ask_again_seconds:
            return False
        self._asked[resource] = self._clock()
        if not await self._client.serves(resource):
            structlog.get_logger().warning("api_missing", api=resource.api_version, kind=resource.kind)
            return False
        self._found.add(resource)
        self._on_found(resource)
        return True
