"""The operator's HTTP port: liveness, readiness, metrics."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


class HealthServer:
    """Answers `/healthz` and `/readyz` by the problems that the two functions name, and `/metrics`."""

    def __init__(
        self,
        *,
        alive: Callable[[], list[str]],
        ready: Callable[[], list[str]],
        observe: Callable[[], None],
    ) -> None:
        self._observe = observe
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", _answer(alive)),
                web.get("/readyz", _answer(ready)),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chooses where 0 is asked for."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        address = self._runner.addresses[0]
        return int(address[1])

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        self._observe()
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(problems: Callable[[], list[str]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        found = problems()
        return web.Response(text="; ".join(found) or "ok", status=503 if found else 200)

    return handle
