"""When a watch counts as alive, by a client whose watches are all silent."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest

from paceline.operator.config import WatchConfig
from paceline.operator.kube.errors import SilentError
from paceline.operator.kube.reflector import Reflector
from paceline.operator.kube.resources import PODS, Resource

SILENCE = WatchConfig().silence_seconds


class SilentServer:
    """Lists what `pods` returns; its watches end after the silence that a client bears, and deliver nothing."""

    def __init__(self, pods: Callable[[], Mapping[str, str]], rounds: int) -> None:
        self.now = 0.0
        self.watches = 0
        self.done = asyncio.Event()
        self._pods = pods
        self._rounds = rounds

    async def page(self, resource: Resource, namespace: str | None, query: Mapping[str, str]) -> dict[str, Any]:
        items = [{"metadata": {"uid": uid, "resourceVersion": version}} for uid, version in self._pods().items()]
        return {"items": items, "metadata": {"resourceVersion": "100"}}

    async def watch(self, *_: Any, silence_seconds: float, **__: Any) -> AsyncGenerator[dict[str, Any]]:
        if self.watches == self._rounds:
            self.done.set()
            await asyncio.Event().wait()
        self.watches += 1
        self.now += silence_seconds
        raise SilentError("nothing heard")
        yield {}


class NoStore:
    def put(self, resource: Resource, manifest: dict[str, Any]) -> None: ...

    def remove(self, resource: Resource, manifest: dict[str, Any]) -> None: ...

    def keep_only(self, resource: Resource, namespace: str | None, uids: set[str]) -> None: ...


async def silent_seconds_after(rounds: int, pods: Callable[[], Mapping[str, str]]) -> tuple[float, bool]:
    server = SilentServer(pods, rounds)
    reflector = Reflector(server, PODS, NoStore(), WatchConfig(), clock=lambda: server.now)  # type: ignore[arg-type]
    running = asyncio.create_task(reflector.run())
    await asyncio.wait_for(server.done.wait(), 10)
    running.cancel()
    return reflector.silent_seconds, reflector.is_alive


@pytest.mark.parametrize("pods", [{}, {"a": "1", "b": "2"}], ids=["none", "two"])
async def test_a_watch_of_a_kind_that_never_changes_is_alive_however_long_it_is_silent(pods: dict[str, str]) -> None:
    assert await silent_seconds_after(5, lambda: pods) == (0, True)


@pytest.mark.parametrize(("rounds", "alive"), [(1, True), (2, False)])
async def test_a_watch_that_misses_changes_is_dead_after_two_silences(rounds: int, alive: bool) -> None:
    lists = iter(range(10))
    assert await silent_seconds_after(rounds, lambda: {"a": str(next(lists))}) == (rounds * SILENCE, alive)


async def test_a_watch_that_misses_a_deletion_is_not_proven() -> None:
    lists = iter([{"a": "1", "b": "2"}, {"a": "1"}])
    assert await silent_seconds_after(1, lambda: next(lists)) == (SILENCE, True)
