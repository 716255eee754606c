"""One streamed request, read chunk by chunk with the times at which its bytes arrived.

Our own reader, since what is measured hangs on it: an error event after HTTP 200 is an error, a stream that stops
without its end mark is incomplete, and a chunk is not a token.
"""

import asyncio
from typing import Any

import httpx

from paceline.bench.clock import RunClock
from paceline.bench.deltas import read_delta
from paceline.bench.received import Received, RequestIdentity
from paceline.bench.records import RequestRecord, RequestState
from paceline.bench.sse import DONE, EventStreamDecoder


class Stream:
    """A request that is sent once and read to its end, or until the workload has seen enough."""

    def __init__(self, client: httpx.AsyncClient, clock: RunClock, identity: RequestIdentity, request: httpx.Request):
        self.identity = identity
        self.record: RequestRecord | None = None
        self.first_token = asyncio.Event()
        self._client, self._clock, self._request = client, clock, request
        self._received = Received()
        self._intended = 0.0
        self._awaited_tokens = 0
        self._awaited = asyncio.Event()
        self._task: asyncio.Task[RequestRecord] | None = None
        self._end_state: RequestState | None = None

    def start(self, intended_seconds: float) -> asyncio.Task[RequestRecord]:
        """Send the request, which was due at `intended_seconds`, and read it in a task that returns its record."""
        self._intended = intended_seconds
        self._task = asyncio.create_task(self._run(), name=self.identity.request_id)
        return self._task

    async def end(self, state: RequestState, reason: str | None = None) -> RequestRecord | None:
        """Close the stream and give its record the state; one that ended by itself keeps its own.

        None for a stream that was never started.
        """
        if self._task is None:
            return None
        if not self._task.done():
            self._end_state, self._received.error = state, reason
            self._task.cancel()
        return await self._task

    async def has_tokens(self, count: int) -> None:
        """Wait until `count` output tokens have arrived; one waiter at a time."""
        self._awaited_tokens, self._awaited = count, asyncio.Event()
        if self._received.counted < count:
            await self._awaited.wait()

    async def _run(self) -> RequestRecord:
        try:
            await self._exchange()
        except asyncio.CancelledError:
            if self._end_state is None:
                raise
            self.record = self._finish(self._end_state)
        except httpx.HTTPError as error:
            state = RequestState.FAILED if self._received.status is None else RequestState.INCOMPLETE
            self._received.error = self._received.error or f"{type(error).__name__}: {error}"
            self.record = self._finish(state)
        else:
            self.record = self._finish(self._received.conclude())
        return self.record

    async def _exchange(self) -> None:
        received, clock = self._received, self._clock

        async def trace(name: str, _info: dict[str, Any]) -> None:
            if name.endswith("send_request_body.complete"):
                received.sent = clock.seconds()

        self._request.extensions["trace"] = trace
        response = await self._client.send(self._request, stream=True)
        try:
            received.first_byte = clock.seconds()
            received.status = response.status_code
            if response.status_code != httpx.codes.OK:
                await response.aread()
                received.refuse(response.text)
                return
            await self._read(response)
        finally:
            await response.aclose()

    async def _read(self, response: httpx.Response) -> None:
        decoder, received = EventStreamDecoder(), self._received
        async for piece in response.aiter_bytes():
            now = self._clock.now()
            for data in decoder.feed(piece):
                if data == DONE:
                    received.done = True
                else:
                    received.take(read_delta(data), now)
            if received.first_token is not None:
                self.first_token.set()
            if received.counted >= self._awaited_tokens:
                self._awaited.set()

    def _finish(self, state: RequestState) -> RequestRecord:
        return self._received.record(self.identity, self._intended, self._clock.seconds(), state)
