"""How late the client itself is: while it is, what it reads is its own delay and not the engine's."""

import asyncio
from contextlib import suppress
from typing import Final, Self

from paceline.bench.clock import RunClock
from paceline.bench.records import ClientLag, RequestRecord

PERIOD_SECONDS: Final = 0.01


class LagMeter:
    """Measures how late the event loop wakes a sleeper; an asynchronous context manager around what is measured."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock
        self._lags: list[tuple[float, float]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch(), name="lag-meter")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            self._lags.append((self._clock.seconds(), max(0.0, loop.time() - due)))

    def lag(
        self, requests: list[RequestRecord], since_seconds: float | None, until_seconds: float | None = None
    ) -> ClientLag:
        """Return the loop's lag between two points in time of the run, with how late the requests were sent.

        A lag that begins before the end counts, however long after it the loop went on.
        """
        lags = [
            lag
            for at, lag in self._lags
            if (since_seconds is None or at >= since_seconds) and (until_seconds is None or at - lag <= until_seconds)
        ]
        sends = [
            record.sent_seconds - record.intended_seconds for record in requests if record.sent_seconds is not None
        ]
        return ClientLag(
            max_loop_lag_seconds=max(lags, default=0.0),
            max_send_lag_seconds=max(sends, default=0.0),
        )
