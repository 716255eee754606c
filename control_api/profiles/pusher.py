"""Brings one engine to the wanted settings, and goes on trying until it runs them."""

import asyncio
import contextlib
from typing import Final

import structlog

from paceline.control_api.errors import StateFileError
from paceline.control_api.metrics import Metrics
from paceline.control_api.profiles.base import LiveState
from paceline.control_api.profiles.engine_client import (
    AdminReply,
    EngineClient,
    EngineRefusedError,
    EngineUnavailableError,
)
from paceline.control_api.profiles.local_files import LocalFiles
from paceline.control_api.schemas.profiles import EngineStatus
from paceline.engine_ext.settings import LiveSettings

FIRST_RETRY_SECONDS: Final = 0.1
LAST_RETRY_SECONDS: Final = 5.0
STALE_STATUS: Final = 409

_log = structlog.get_logger(__name__)


class EnginePusher:
    """Level-based: whatever was missed in between, the engine ends with what the settings file holds."""

    def __init__(self, files: LocalFiles, client: EngineClient, metrics: Metrics) -> None:
        self._files = files
        self._client = client
        self._metrics = metrics
        # What the engine said last, compared with the wanted settings only when it is looked at.
        self._heard: AdminReply | Exception | None = None
        self._logged: tuple[str, LiveSettings] | None = None
        self._refused: tuple[LiveSettings, str] | None = None
        self._news = asyncio.Condition()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def refusal(self, settings: LiveSettings) -> str | None:
        """Return why the engine refused exactly these settings, or None if it did not."""
        return self._refused[1] if self._refused is not None and self._refused[0] == settings else None

    async def push(self, wanted: LiveSettings, wait_seconds: float) -> LiveState:
        """Start to bring the engine to the wanted settings and wait for it, at most `wait_seconds`."""
        self._refused = None
        self._start()

        def settled() -> LiveState | None:
            seen = self._state(self._files.settings())
            # A later change overtakes this one: then the engine runs a newer revision, which contains the wait.
            reached = seen.settings.fence >= wanted.fence and seen.applied
            return seen if reached or self.refusal(wanted) is not None else None

        seen = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds), self._news:
                seen = await self._news.wait_for(settled)
        # Not read again where it was reached: a thread may have written the next change since.
        return seen or self._state(self._files.settings())

    async def observe(self) -> LiveState:
        """Ask the engine what it runs; one that is behind (restarted, or unreachable before) is pushed again."""
        wanted = self._files.settings()
        try:
            self._heard = await self._read()
        except EngineUnavailableError as error:
            self._heard = error
        state = self._state(wanted)
        if not state.applied and self.refusal(wanted) is None:
            self._start()
        return state

    async def close(self) -> None:
        """Stop trying."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start(self) -> None:
        self._hurry.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="push-settings")

    def _state(self, wanted: LiveSettings) -> LiveState:
        match self._heard:
            case AdminReply() as reply:
                return LiveState(wanted, reply.statuses(wanted))
            case None:
                return LiveState(wanted, (EngineStatus(name="engine", message="it was not asked yet"),))
            case error:
                hint = "the settings are kept, and it gets them once it answers"
                return LiveState(wanted, (EngineStatus(name="engine", message=f"{error}; {hint}"),))

    async def _run(self) -> None:
        # The task outlives the request that started it.
        structlog.contextvars.clear_contextvars()
        try:
            await self._push_until_applied()
        except StateFileError as error:
            _log.error("push_stopped", reason=str(error))
            self._heard = error

    async def _push_until_applied(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while True:
            self._hurry.clear()
            wanted = self._files.settings()
            done = await self._attempt(wanted)
            async with self._news:
                self._news.notify_all()
            if done and not self._hurry.is_set() and self._files.settings() == wanted:
                return
            if not done:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), delay)
                delay = min(2 * delay, LAST_RETRY_SECONDS)

    async def _attempt(self, wanted: LiveSettings) -> bool:
        """Push once; return whether there is nothing left to do for these settings."""
        try:
            self._heard = await self._send(wanted)
        except EngineUnavailableError as error:
            self._heard = error
            self._count("unreachable", wanted, str(error))
            return False
        except EngineRefusedError as error:
            if error.status == STALE_STATUS:
                await self._overtake(wanted)
                self._count("stale", wanted, error.detail)
                return False
            self._refused = (wanted, error.detail)
            self._count("refused", wanted, error.detail)
            return True
        self._count("applied", wanted, None)
        return self._state(wanted).applied

    async def _overtake(self, wanted: LiveSettings) -> None:
        """Give the wanted knobs a fence above the engine's: in a local run nobody else may set it.

        An engine is ahead of the file when the file was put back from a backup or edited by hand.
        """
        try:
            running = (await self._read()).settings
        except EngineUnavailableError:
            return
        if self._files.settings() == wanted:
            fence = max(running.fence, wanted.fence)
            above = wanted.model_copy(update={"epoch": fence[0], "revision": fence[1] + 1})
            await asyncio.to_thread(self._files.write_settings, above)
            self._hurry.set()

    async def _read(self) -> AdminReply:
        access = self._files.engine()
        if access is None:
            raise EngineUnavailableError("no engine is running: start it with `paceline up`")
        return await self._client.read(access)

    async def _send(self, wanted: LiveSettings) -> AdminReply:
        access = self._files.engine()
        if access is None:
            raise EngineUnavailableError("no engine is running: start it with `paceline up`")
        return await self._client.push(access, wanted)

    def _count(self, result: str, wanted: LiveSettings, reason: str | None) -> None:
        self._metrics.engine_pushes.labels(result).inc()
        if self._logged == (result, wanted):
            return
        self._logged = (result, wanted)
        log = _log.info if result == "applied" else _log.warning
        log("engine_push", result=result, epoch=wanted.epoch, revision=wanted.revision, reason=reason)
