"""Leader election by a Lease.

The client library's own election keeps its record in naive local time and needs the typed API, 135 MiB of memory.
"""

import asyncio
import datetime
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from paceline.operator.config import LeaseConfig
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import ApiError, KubeError
from paceline.operator.kube.resources import LEASES

_MICRO_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class LostLeadershipError(Exception):
    """Another operator leads, or the Lease could not be renewed in time."""


class Elector:
    """Takes the Lease when it is free or expired, and renews it.

    Expiry is judged by how long the record did not change on this machine's clock, never by another's clock.
    """

    def __init__(
        self,
        client: KubeClient,
        config: LeaseConfig,
        identity: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self._client = client
        self._config = config
        self._clock = clock
        self._seen: tuple[str, str] | None = None
        self._seen_at = clock()
        self._renewed_at = clock()
        self._leads = False
        self._own: dict[str, Any] | None = None
        self._log = structlog.get_logger().bind(lease=f"{config.namespace}/{config.name}", identity=identity)

    async def acquire(self) -> None:
        """Wait until this operator leads."""
        while True:
            try:
                if await self._try():
                    self._log.info("leadership_taken")
                    return
            except KubeError as error:
                self._log.info("lease_not_taken", error=str(error))
            await asyncio.sleep(self._config.renew_seconds)

    async def hold(self) -> None:
        """Renew the Lease until cancelled. Raises LostLeadershipError."""
        while True:
            await asyncio.sleep(self._config.renew_seconds)
            try:
                renewed = await asyncio.wait_for(self._try(), self._config.deadline_seconds)
            except (KubeError, TimeoutError) as error:
                self._log.warning("lease_not_renewed", error=str(error) or "timed out")
                renewed = None
            if renewed is False:
                raise LostLeadershipError(f"the lease is held by {self._seen and self._seen[0]}")
            if self._clock() - self._renewed_at > self._config.deadline_seconds:
                raise LostLeadershipError("the lease could not be renewed in time")

    def check(self) -> None:
        """Raise LostLeadershipError where the Lease may have expired: a paused process must not write when it wakes."""
        if not self._leads or self._clock() - self._renewed_at >= self._config.duration_seconds:
            raise LostLeadershipError("the lease may have expired")

    async def release(self) -> None:
        """Give the Lease up, so that a successor need not wait for it to expire."""
        lease = await self._client.get(LEASES, self._config.namespace, self._config.name)
        if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.replace(lease)
            self._log.info("leadership_released")

    async def _try(self) -> bool:
        # A leader's last answer spares it a look: whoever changed the Lease since makes its write a conflict.
        known = self._own if self._leads else None
        lease = known or await self._client.get(LEASES, self._config.namespace, self._config.name)
        try:
            if lease is None:
                place = {"name": self._config.name, "namespace": self._config.namespace}
                taken = self._taken({"metadata": place, "spec": {}})
                self._own = await self._client.create(taken, manager=self.identity)
            elif self._may_take(lease["spec"]):
                self._own = await self._client.replace(self._taken(lease))
            else:
                self._leads = False
                return False
        except ApiError as error:
            self._own = None
            if error.status not in (404, 409):
                raise
            # Another wrote first: a rival who now leads, or someone who labelled or removed the leader's own lease.
            return await self._try() if self._leads else False
        self._leads, self._renewed_at = True, self._clock()
        return True

    def _may_take(self, spec: dict[str, Any]) -> bool:
        holder = spec.get("holderIdentity", "")
        if holder in ("", self.identity):
            return True
        record = (holder, spec.get("renewTime", ""))
        if record != self._seen:
            self._seen, self._seen_at = record, self._clock()
        return self._clock() - self._seen_at > int(spec.get("leaseDurationSeconds", self._config.duration_seconds))

    def _taken(self, lease: dict[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime(_MICRO_TIME)
        spec = lease["spec"]
        if spec.get("holderIdentity") == self.identity:
            acquired, transitions = spec.get("acquireTime", now), spec.get("leaseTransitions", 0)
        else:
            acquired, transitions = now, spec.get("leaseTransitions", -1) + 1
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": lease["metadata"],
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self._config.duration_seconds,
                "acquireTime": acquired,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }
