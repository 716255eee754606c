"""A proxy before the API server that shows its faults on demand."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from testbed import ApiServer

Fault = Callable[[web.Request], "web.StreamResponse | str | None"]
"""What to do with a request: an answer of its own, `abort`, `hold` (headers, then nothing), `gone` (410 streamed)."""

_HOP = {"content-length", "transfer-encoding", "content-encoding", "connection", "host", "accept-encoding"}


def passes(request: web.Request) -> None:
    """Let every request pass."""


class ApiProxy:
    """Plain HTTP towards the operator, TLS towards the API server. `fault` may be changed at any time."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._token = yaml.safe_load(server.kubeconfig.read_text())["users"][0]["user"]["token"]
        self._session: aiohttp.ClientSession | None = None
        self.fault: Fault = passes
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    @classmethod
    @contextmanager
    def serving(cls, server: ApiServer) -> Iterator["ApiProxy"]:
        proxy, ready, loop = cls(server), threading.Event(), asyncio.new_event_loop()

        async def serve() -> web.AppRunner:
            trust = ssl.create_default_context(cafile=str(server.ca_file))
            connector = aiohttp.TCPConnector(ssl=trust, limit=0)
            proxy._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
            application = web.Application(client_max_size=2**26)
            application.router.add_route("*", "/{path:.*}", proxy._handle)
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            return runner

        async def close(runner: web.AppRunner) -> None:
            await runner.cleanup()
            assert proxy._session is not None
            await proxy._session.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            # TLS connections close over several turns of the loop, and aiohttp offers nothing to wait for.
            await asyncio.sleep(0.2)

        def work() -> None:
            runner = loop.run_until_complete(serve())
            loop.run_forever()
            loop.run_until_complete(close(runner))
            loop.close()

        thread = threading.Thread(target=work, name="API proxy")
        thread.start()
        ready.wait(10)
        try:
            yield proxy
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig that leads through the proxy."""
        cluster = {"name": "c", "cluster": {"server": self.url}}
        user = {"name": "u", "user": {"token": self._token}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [cluster],
                    "users": [user],
                    "contexts": [context],
                    "current-context": "c",
                }
            )
        )
        return path

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        answer = self.fault(request)
        if isinstance(answer, web.StreamResponse):
            return answer
        if answer == "abort":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if answer in ("hold", "gone"):
            return await self._odd_stream(request, gone=answer == "gone")
        return await self._forward(request)

    async def _odd_stream(self, request: web.Request, *, gone: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if gone:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return response
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.1)
        return response

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        headers["Authorization"] = f"Bearer {self._token}"
        url, body = f"{self._server.url}{request.path_qs}", await request.read()
        async with self._session.request(request.method, url, headers=headers, data=body or None) as upstream:
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP}
            response = web.StreamResponse(status=upstream.status, headers=kept)
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            return response


def refusal(status: int, reason: str) -> web.Response:
    """Return an error as the API server words it."""
    return web.json_response({"kind": "Status", "code": status, "reason": reason, "message": reason}, status=status)
