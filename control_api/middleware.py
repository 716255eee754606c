"""What happens around every request: its id, the limit of its body, its log line and its metrics.

Plain ASGI, since Starlette's BaseHTTPMiddleware buffers streams and hides a client's disconnect.
"""

import time
import uuid
from http import HTTPStatus
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.control_api.errors import ProblemError
from paceline.control_api.metrics import Metrics
from paceline.control_api.problems import render

_log = structlog.get_logger(__name__)

SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_QUIET_ROUTES: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class RequestContext:
    """Give each request an id, send it back, and leave one log line and one count behind."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope["paceline_request_id"] = request_id
        started, status, streamed = time.monotonic(), 500, False

        async def tell(message: Message) -> None:
            nonlocal status, streamed
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message["headers"])
                streamed = (b"content-type", b"text/event-stream") in [(k, v.split(b";")[0]) for k, v in headers]
                present = {name for name, _ in headers}
                headers += [pair for pair in SECURITY_HEADERS if pair[0] not in present]
                message = {**message, "headers": [*headers, (b"x-request-id", request_id.encode())]}
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, tell)
            finally:
                self._account(scope, status, time.monotonic() - started, streamed=streamed)

    def _account(self, scope: Scope, status: int, seconds: float, *, streamed: bool) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        # Any word may stand there: only known ones become a label, or a client could grow the metrics without bound.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.requests.labels(method, route, str(status)).inc()
        if not streamed:
            self.metrics.request_seconds.labels(method, route).observe(seconds)
        if route not in _QUIET_ROUTES:
            _log.info("request", method=method, path=scope["path"], status=status, seconds=round(seconds, 4))


class BodyLimit:
    """Refuse a body over the limit with 413, by its declared length or as it arrives."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.max_bytes:
            await self._refuse(scope, receive, send)
            return
        messages, size = [], 0
        while True:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if size > self.max_bytes:
                await self._refuse(scope, receive, send)
                return
            if message["type"] != "http.request" or not message.get("more_body"):
                break
        pending = iter(messages)

        async def replay() -> Message:
            return next(pending, None) or await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"the body is larger than {self.max_bytes} bytes, the most that this server takes"
        problem = ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body-too-large", detail)
        await render(problem, scope["paceline_request_id"])(scope, receive, send)
