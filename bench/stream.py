"""One streamed request, read chunk by chunk with the times at which its bytes arrived.

Our own reader, since what is measured hangs on it: an error event after HTTP 200 is an error, a stream that stops
without its end mark is incomplete, and a chunk is not a token. While nobody waits for a token the bytes are only kept
with their times, and taken apart once the stream has ended, so that reading costs the measured machine little.
"""

import asyncio
import io
from collections.abc import Callable
from http import HTTPStatus

import aiohttp

from paceline.bench.clock import Instant, RunClock
from paceline.bench.deltas import read_delta
from paceline.bench.received import Received, RequestIdentity
from paceline.bench.records import RequestRecord, RequestState
from paceline.bench.sse import DONE, EventStreamDecoder


def tracing() -> aiohttp.TraceConfig:
    """Return the tracing that a session needs for its streams to know when their requests had been written."""

    async def sent(_session: object, context: object, _parameters: object) -> None:
        note: Callable[[], None] | None = getattr(context, "trace_request_ctx", None)
        if note is not None:
            note()

    config = aiohttp.TraceConfig()
    config.on_request_chunk_sent.append(sent)
    return config


class Stream:
    """A request that is sent once and read to its end, or until the workload has seen enough."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, body: bytes, clock: RunClock, identity: RequestIdentity
    ):
        self.identity = identity
        self.record: RequestRecord | None = None
        self.first_token = asyncio.Event()
        self._session, self._url, self._body, self._clock = session, url, body, clock
        self._received, self._decoder = Received(), EventStreamDecoder()
        self._unread: list[tuple[Instant, bytes]] = []
        self._intended = 0.0
        self._awaited_tokens = 0
        self._awaited = asyncio.Event()
        self._task: asyncio.Task[RequestRecord] | None = None
        self._end_state: RequestState | None = None
        self._end_reason: str | None = None

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
            self._end_state, self._end_reason = state, reason
            self._task.cancel()
        return await self._task

    async def has_tokens(self, count: int) -> None:
        """Wait until `count` output tokens have arrived; one waiter at a time."""
        self._awaited_tokens, self._awaited = count, asyncio.Event()
        self._digest()
        if self._received.counted < count:
            await self._awaited.wait()

    async def _run(self) -> RequestRecord:
        try:
            await self._exchange()
        except asyncio.CancelledError:
            if self._end_state is None:
                raise
            self._digest()
            # An error event before the end counts, though the stream went on after it.
            state = self._end_state if self._received.error is None else RequestState.FAILED
            self._received.error = self._received.error or self._end_reason
        except (aiohttp.ClientError, TimeoutError) as error:
            self._digest()
            state = RequestState.FAILED if self._received.status is None else RequestState.INCOMPLETE
            self._received.error = self._received.error or f"{type(error).__name__}: {error}"
        else:
            self._digest()
            state = self._received.conclude()
        self.record = self._received.record(self.identity, self._intended, self._clock.seconds(), state)
        return self.record

    async def _exchange(self) -> None:
        received = self._received
        async with self._session.post(
            self._url,
            data=io.BytesIO(self._body),
            headers={"Content-Type": "application/json"},
            trace_request_ctx=self._note_sent,
        ) as response:
            received.first_byte = self._clock.seconds()
            received.status = response.status
            if response.status != HTTPStatus.OK:
                received.refuse(await response.text(errors="replace"))
                return
            async for piece in response.content.iter_any():
                self._unread.append((self._clock.now(), piece))
                if received.first_token is None or received.counted < self._awaited_tokens:
                    self._digest()

    def _note_sent(self) -> None:
        self._received.sent = self._clock.seconds()

    def _digest(self) -> None:
        """Take apart what has been read since the last time, and wake whoever waits for it."""
        unread, self._unread = self._unread, []
        for instant, piece in unread:
            for data in self._decoder.feed(piece):
                if data == DONE:
                    self._received.done = True
                else:
                    self._received.take(read_delta(data), instant)
        if self._received.first_token is not None:
            self.first_token.set()
        if self._received.counted >= self._awaited_tokens:
            self._awaited.set()
