"""The operator while it leads: reflectors fill the cache, changes fill the queue, workers make passes."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Final

import structlog

from paceline.operator.cache import Cache, Key
from paceline.operator.capabilities import Capabilities
from paceline.operator.config import OperatorConfig
from paceline.operator.engines import EngineAddress, EngineClient
from paceline.operator.fleet import Fleet
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import KubeError
from paceline.operator.kube.reflector import Reflector
from paceline.operator.kube.resources import OWNED, PODS, PROFILES, Resource
from paceline.operator.metrics import QUEUE_LENGTH, RECONCILE_SECONDS, RECONCILES, WATCH_SILENCE
from paceline.operator.queue import WorkQueue
from paceline.operator.reconcile import Reconciler
from paceline.operator.reporter import Reporter
from paceline.operator.settings_ledger import SettingsLedger
from paceline.operator.specs.names import ENGINE_NAME, MANAGED_BY, selector_text
from paceline.operator.writer import Writer

_LONGEST_BACKOFF_SECONDS: Final = 30.0
_SELECTOR: Final = selector_text(ENGINE_NAME | MANAGED_BY)


class Controller:
    """Everything of one leadership; `run` it, and cancel it to stop."""

    def __init__(self, client: KubeClient, config: OperatorConfig, operator_key: bytes, identity: str) -> None:
        self.queue: WorkQueue[Key] = WorkQueue()
        self.cache = Cache(self.queue.add)
        self._client = client
        self._config = config
        self._engines = EngineClient(
            EngineAddress(config.engine.admin_port, config.engine.admin_host), config.engine_request_seconds
        )
        self._reflectors = [self._reflector(kind, space) for kind in (PROFILES, PODS, *OWNED) for space in self._spaces]
        self._group: asyncio.TaskGroup | None = None
        self._failures: dict[Key, int] = {}
        self.reconciler = Reconciler(
            cache=self.cache,
            writer=Writer(client, self.cache),
            ledger=SettingsLedger(client, self.cache),
            fleet=Fleet(self._engines, client, verify_seconds=config.verify_seconds),
            reporter=Reporter(client, self.cache, identity),
            capabilities=Capabilities(client, self._watch_more, ask_again_seconds=config.optional_api_seconds),
            refused_seconds=config.optional_api_seconds,
            config=config.engine,
            operator_key=operator_key,
        )

    @property
    def _spaces(self) -> list[str | None]:
        return [*self._config.watch.namespaces] or [None]

    async def run(self) -> None:
        """Lead until cancelled. Raises LostLeadershipError, in a group, where a successor is found at work."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for reflector in self._reflectors:
                    group.create_task(reflector.run())
                # A pass on half a cache would take missing objects for deleted ones.
                for reflector in list(self._reflectors):
                    await reflector.synced.wait()
                structlog.get_logger().info("caches_filled", profiles=len(list(self.cache.profiles())))
                for _ in range(self._config.workers):
                    group.create_task(self._work())
        finally:
            await self._engines.close()

    def dead_watches(self) -> list[str]:
        """Return the kinds whose watch gave no sign of life for too long."""
        return [reflector.name for reflector in self._reflectors if not reflector.is_alive]

    @property
    def is_synced(self) -> bool:
        """Tell whether every kind was listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def observe(self) -> None:
        """Bring the gauges up to date, before they are read."""
        QUEUE_LENGTH.set(len(self.queue))
        for reflector in self._reflectors:
            labels = {"kind": reflector.resource.plural, "namespace": reflector.namespace or ""}
            WATCH_SILENCE.labels(**labels).set(reflector.silent_seconds)

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._pass(key)
            finally:
                self.queue.done(key)

    async def _pass(self, key: Key) -> None:
        started = time.monotonic()
        with _logged(key) as log:
            try:
                again = await self.reconciler.reconcile(key)
            except KubeError as error:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                again = min(_LONGEST_BACKOFF_SECONDS, 0.1 * 2.0**failures)
                log.warning("pass_failed", error=str(error), again_seconds=again)
                RECONCILES.labels(result="failed").inc()
            else:
                self._failures.pop(key, None)
                RECONCILES.labels(result="done").inc()
                log.debug("pass_done", seconds=round(time.monotonic() - started, 4), again_seconds=again)
        RECONCILE_SECONDS.observe(time.monotonic() - started)
        if again is not None:
            self.queue.add_after(key, again)

    def _watch_more(self, resource: Resource) -> None:
        for space in self._spaces:
            reflector = self._reflector(resource, space)
            self._reflectors.append(reflector)
            if self._group is not None:
                self._group.create_task(reflector.run())

    def _reflector(self, resource: Resource, namespace: str | None) -> Reflector:
        selector = "" if resource == PROFILES else _SELECTOR
        return Reflector(self._client, resource, self.cache, self._config.watch, namespace=namespace, selector=selector)


@contextlib.contextmanager
def _logged(key: Key) -> Iterator[structlog.stdlib.BoundLogger]:
    """Have every line of a pass name its object and the pass."""
    names = {"namespace": key.namespace, "profile": key.name, "reconcile_id": secrets.token_hex(4)}
    with structlog.contextvars.bound_contextvars(**names):
        yield structlog.get_logger()
