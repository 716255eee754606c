"""Keeps a cache in step with the API server by listing and watching, and can prove that it does.

Why not kopf or the client library: docs/decisions/2026-11-29-own-watches.md.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from paceline.operator.config import WatchConfig
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import ApiError, KubeError, SilentError
from paceline.operator.kube.resources import Resource

_LONGEST_PAUSE_SECONDS: Final = 10.0


class Store(Protocol):
    """Where a reflector puts what it sees."""

    def put(self, resource: Resource, manifest: dict[str, Any]) -> None:
        """Take an object that was added, changed or listed."""

    def remove(self, resource: Resource, manifest: dict[str, Any]) -> None:
        """Drop an object that was deleted."""

    def keep_only(self, resource: Resource, namespace: str | None, uids: set[str]) -> None:
        """Drop the objects of a kind and namespace that a complete list did not hold."""


class Reflector:
    """The list and watch of one kind, in one namespace or all.

    A watch that ended is continued where it was; after 410 Gone, in the stream or as status, everything is listed
    anew, and what vanished meanwhile is dropped from the store.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        store: Store,
        config: WatchConfig,
        *,
        namespace: str | None = None,
        selector: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.synced = asyncio.Event()
        self._client = client
        self._store = store
        self._config = config
        self._query = {"labelSelector": selector} if selector else {}
        self._clock = clock
        self._sign_of_life = clock()
        self._version = ""
        self._seen: dict[str, str] = {}
        self._doubted = False
        self._log = structlog.get_logger().bind(watch=resource.plural, watched_namespace=namespace or "all")

    @property
    def name(self) -> str:
        """The kind, with its namespace where only one is watched."""
        return self.resource.plural if self.namespace is None else f"{self.resource.plural} in {self.namespace}"

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last proof that this watch misses nothing, or since an attempt that failed with an error.

        A refused connection is the API server's absence and heals by itself. Silence is no proof: a stream that
        delivers nothing looks like a cluster where nothing happens, and of a kind that never changes there are not
        even bookmarks. So after silence everything is listed; it proves the watch if it tells nothing new.
        """
        return self._clock() - self._sign_of_life

    @property
    def is_alive(self) -> bool:
        """Tell whether this watch can be trusted: it may be silent for twice the time after which it is renewed."""
        return self.silent_seconds < 2 * self._config.silence_seconds

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                failures = 0
            except ApiError as error:
                failures = 0 if error.is_gone else failures + 1
                if error.is_gone:
                    self._version = ""
                self._log.info("watch_renewed", error=str(error))
                self._heard()
            except SilentError as error:
                self._log.debug("watch_silent", error=str(error))
                self._version, self._doubted = "", True
            except KubeError as error:
                failures += 1
                self._log.info("watch_renewed", error=str(error))
                self._heard()
            await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, 0.05 * 2**failures) * random.uniform(0.5, 1))

    async def _list(self) -> None:
        listed: dict[str, str] = {}
        query = {**self._query, "limit": str(self._config.page_size)}
        while True:
            page = await self._client.page(self.resource, self.namespace, query)
            if not self._doubted:
                self._heard()
            for manifest in page["items"]:
                listed[manifest["metadata"]["uid"]] = manifest["metadata"]["resourceVersion"]
                self._store.put(self.resource, manifest)
            if not (token := page["metadata"].get("continue")):
                break
            query["continue"] = token
        self._store.keep_only(self.resource, self.namespace, set(listed))
        if self._doubted and listed == self._seen:
            self._heard()
        elif self._doubted:
            self._log.warning("watch_missed_changes", silent_seconds=round(self.silent_seconds))
        self._seen, self._doubted = listed, False
        self._version = page["metadata"]["resourceVersion"]
        self.synced.set()

    async def _watch(self) -> None:
        query = {
            **self._query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._config.server_seconds),
        }
        events = self._client.watch(self.resource, self.namespace, query, silence_seconds=self._config.silence_seconds)
        async for event in events:
            self._heard()
            manifest = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(
                    manifest.get("code", 0),
                    manifest.get("reason", ""),
                    manifest.get("message", ""),
                    f"watch of {self.resource.plural}",
                )
            metadata = manifest["metadata"]
            if event["type"] == "DELETED":
                self._seen.pop(metadata["uid"], None)
                self._store.remove(self.resource, manifest)
            elif event["type"] != "BOOKMARK":
                self._seen[metadata["uid"]] = metadata["resourceVersion"]
                self._store.put(self.resource, manifest)
            self._version = metadata["resourceVersion"]

    def _heard(self) -> None:
        self._sign_of_life = self._clock()
