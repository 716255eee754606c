"""Engines' admin ports for the operator: one server, an engine for each loopback address that is asked.

A fake: it judges settings by the very function that real engines use, and shows faults on demand.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from paceline.engine_ext.settings import LiveSettings, Verdict, judge

PATH = "/paceline/v1/settings"


@dataclass
class FakeEngine:
    """One engine: what it runs, what was sent to it, and its faults."""

    settings: LiveSettings = field(default_factory=LiveSettings)
    received: list[LiveSettings] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    compatible: bool = True
    reasons: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    down: bool = False
    rejects_token: bool = False
    smallest_interval: int = 0
    core_revisions: tuple[int, ...] = ()

    def answer(self) -> dict[str, Any]:
        """Return the document of GET and of a PUT that was taken."""
        revisions = self.core_revisions or (self.settings.revision,)
        cores = [
            {
                "engine": index,
                "epoch": self.settings.epoch,
                "revision": revision,
                "step": 0,
                "paced": True,
                "reasons": [],
            }
            for index, revision in enumerate(revisions)
        ]
        settings = self.settings.model_dump(by_alias=True, exclude_none=True, mode="json")
        return {
            "settings": settings,
            "engines": cores,
            "compatible": self.compatible,
            "reasons": list(self.reasons),
            "coalescing": [{"active": not self.obstacles, "obstacles": list(self.obstacles)} for _ in cores],
        }


class FakeEngines:
    """All engines of a test; `engine("127.1.2.3")` is the one of a pod with that address."""

    def __init__(self) -> None:
        self._engines: dict[str, FakeEngine] = {}
        self._next = 0
        self._applied_at: list[float] = []
        self.port = 0

    def new_address(self) -> str:
        """Return a loopback address that no other pod has."""
        self._next += 1
        return f"127.{1 + self._next // 65536}.{self._next // 256 % 256}.{self._next % 256}"

    def forget_times(self) -> None:
        self._applied_at.clear()

    def times(self) -> list[float]:
        """Return when engines took settings since the last `forget_times`, by the monotonic clock."""
        return list(self._applied_at)

    def engine(self, address: str) -> FakeEngine:
        return self._engines.setdefault(address, FakeEngine())

    @classmethod
    @contextmanager
    def serving(cls) -> Iterator["FakeEngines"]:
        """Listen on every loopback address, in a thread of its own."""
        engines, ready, loop = cls(), threading.Event(), asyncio.new_event_loop()

        async def serve() -> web.AppRunner:
            application = web.Application()
            application.add_routes([web.get(PATH, engines._get), web.put(PATH, engines._put)])
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "0.0.0.0", 0).start()
            engines.port = int(runner.addresses[0][1])
            ready.set()
            return runner

        def work() -> None:
            runner = loop.run_until_complete(serve())
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=work, name="fake engines")
        thread.start()
        ready.wait(10)
        try:
            yield engines
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _of(self, request: web.Request) -> FakeEngine:
        assert request.transport is not None
        return self.engine(request.transport.get_extra_info("sockname")[0])

    async def _get(self, request: web.Request) -> web.Response:
        engine = self._of(request)
        return self._fault(engine, request) or web.json_response(engine.answer())

    async def _put(self, request: web.Request) -> web.Response:
        engine = self._of(request)
        if fault := self._fault(engine, request):
            return fault
        incoming = LiveSettings.model_validate(await request.json())
        engine.received.append(incoming)
        if incoming.pacing.interval < engine.smallest_interval:
            return web.json_response({"title": "Unprocessable", "detail": "the interval is too small"}, status=422)
        match judge(engine.settings, incoming):
            case Verdict.APPLY:
                engine.settings = incoming
                self._applied_at.append(time.monotonic())
            case Verdict.STALE | Verdict.CONFLICT:
                return web.json_response({"title": "Conflict", "detail": "older settings"}, status=409)
        return web.json_response(engine.answer())

    def _fault(self, engine: FakeEngine, request: web.Request) -> web.Response | None:
        if engine.down:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        engine.tokens.add(request.headers.get("Authorization", ""))
        return web.json_response({"title": "Unauthorized"}, status=401) if engine.rejects_token else None
