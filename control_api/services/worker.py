"""Runs queued experiments in the background: one at a time in this process, one at a time on a profile anywhere."""

import asyncio
import contextlib
import os
import secrets
import socket
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.bench.capacity import PlanError
from paceline.bench.engine import EngineError
from paceline.bench.measuring_process import MeasuringProcessError
from paceline.bench.records import ExperimentResult
from paceline.control_api.context import AppContext
from paceline.control_api.db.tables import ExperimentRow
from paceline.control_api.db.types import utc_now
from paceline.control_api.errors import ProblemError, StateFileError
from paceline.control_api.models import experiments, records, runs
from paceline.control_api.profiles.base import ProfileKey
from paceline.control_api.schemas.experiments import ExperimentStatus
from paceline.control_api.services.progress import ProgressHub
from paceline.control_api.services.restore import restore
from paceline.control_api.services.run import Run, SettingsNotAppliedError, persist

RESTORE_SECONDS: Final = 5.0
STOP_RESTORE_SECONDS: Final = 2.0
ABANDONED: Final = "the control API that ran it ended without notice; what was measured until then is kept"
STOPPED: Final = "the control API was stopped during the run; what was measured until then is kept"

_HOST: Final = socket.gethostname()[:32].replace(":", "-")

_log = structlog.get_logger(__name__)


class ExperimentWorker:
    """Claims queued experiments, runs them, and picks up after processes that died."""

    def __init__(self, context: AppContext, hub: ProgressHub) -> None:
        self._context = context
        self._hub = hub
        self._runner_id = f"{_HOST}:{os.getpid()}:{secrets.token_hex(4)}"
        self._lease_seconds = context.config.run_lease_seconds
        self._hurry = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None
        self._running: tuple[str, asyncio.Task[ExperimentResult]] | None = None

    def start(self) -> None:
        """Start to work."""
        self._loop = asyncio.create_task(self._work(), name="experiment-worker")

    def wake(self) -> None:
        """Look for work at once."""
        self._hurry.set()

    def cancel(self, experiment_id: str) -> None:
        """End the run of an experiment whose cancellation was asked for, if it is this process that runs it."""
        if self._running is not None and self._running[0] == experiment_id:
            _end_once(self._running[1])

    async def stop(self) -> None:
        """End the present run as interrupted, put the settings back, and stop."""
        self._stopping = True
        self._hurry.set()
        if self._running is not None:
            _end_once(self._running[1])
        if self._loop is not None:
            await self._loop

    async def _work(self) -> None:
        while not self._stopping:
            self._hurry.clear()
            found = False
            try:
                await self._pick_up()
                found = await self._run_next()
            except (DBAPIError, PoolTimeoutError, OSError, StateFileError) as error:
                _log.warning("worker_waits", reason=str(error))
            if not found and not self._stopping:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), self._lease_seconds / 3)

    async def _measurable(self) -> list[tuple[str, str]]:
        """Return the profiles that an experiment waits for and whose engine answers; one that is down may come."""
        async with self._context.database.read() as session:
            queued = await runs.queued_profiles(session)
        return [profile for profile in sorted(queued) if await self._answers(ProfileKey(*profile))]

    async def _answers(self, key: ProfileKey) -> bool:
        try:
            return (await self._context.store.get(key)).state.silent is None
        except ProblemError as problem:
            if problem.status is not HTTPStatus.NOT_FOUND:  # that of another store on the same database
                _log.warning("profile_waits", profile=str(key), reason=problem.detail)
            return False

    async def _pick_up(self) -> None:
        """Mark the runs of dead processes as interrupted, and put back the settings that they left behind."""
        async with self._context.database.write() as session:
            abandoned = [row for row in await runs.running(session) if _is_abandoned(row)]
            for row in abandoned:
                runs.interrupt(row, utc_now(), ABANDONED)
            waiting = await runs.to_restore(session)
        for row in abandoned:
            _log.warning("experiment_interrupted", experiment=row.id, reason=ABANDONED)
        for row in waiting:
            await restore(self._context, row, RESTORE_SECONDS)

    async def _run_next(self) -> bool:
        profiles = await self._measurable()
        if not profiles:
            return False
        try:
            async with self._context.database.write() as session:
                row = await runs.claim_next(session, profiles, self._lease(), utc_now())
        except IntegrityError:
            return False
        if row is None:
            return False
        with structlog.contextvars.bound_contextvars(experiment=row.id):
            await self._run(row)
        return True

    async def _run(self, row: ExperimentRow) -> None:
        _log.info("experiment_started", name=row.name, profile=f"{row.profile_namespace}/{row.profile_name}")
        self._hub.notify(row.id)
        try:
            run = Run(self._context, self._hub, row)
        except ValidationError as error:
            reason = f"the experiment was stored by another version and can't be read: {error}"
            await self._finish(row.id, ExperimentStatus.FAILED, reason)
            return
        measuring = asyncio.create_task(run.execute(), name=f"experiment-{row.id}")
        self._running = (row.id, measuring)
        ended = asyncio.Event()
        renewing = asyncio.create_task(self._renew(row.id, measuring, ended), name=f"lease-{row.id}")
        try:
            if self._stopping:
                _end_once(measuring)
            await asyncio.wait([measuring])
            self._running = None
            await self._end(row.id, measuring)
        finally:
            ended.set()
            await renewing

    async def _end(self, experiment_id: str, measuring: asyncio.Task[ExperimentResult]) -> None:
        status, failure, result = self._outcome(measuring)
        # Before the run is told to have ended: who waits for that finds the profile as it was.
        await self._restore(experiment_id)
        await self._finish(experiment_id, status, failure, result)

    async def _finish(
        self, experiment_id: str, status: ExperimentStatus, failure: str | None, result: ExperimentResult | None = None
    ) -> None:
        """Store how a run ended, and tell whoever watches."""

        async def write(session: AsyncSession) -> None:
            values: dict[str, object] = {"failure": failure, "ended_at": utc_now()}
            if result is not None:
                values |= {"engine": records.document(result.engine), "clock": records.document(result.clock)}
            if await runs.finish(session, experiment_id, self._runner_id, status, **values) and result is not None:
                await records.add_result(session, experiment_id, result)

        await persist(self._context, write)
        self._hub.notify(experiment_id)
        self._context.metrics.experiments_finished.labels(status).inc()
        _log.info("experiment_ended", status=str(status), failure=failure)

    async def _restore(self, experiment_id: str) -> None:
        async with self._context.database.read() as session:
            row = await experiments.get(session, experiment_id)
        if row is not None:
            await restore(self._context, row, STOP_RESTORE_SECONDS if self._stopping else RESTORE_SECONDS)

    def _outcome(
        self, measuring: asyncio.Task[ExperimentResult]
    ) -> tuple[ExperimentStatus, str | None, ExperimentResult | None]:
        if measuring.cancelled():
            if self._stopping:
                return ExperimentStatus.INTERRUPTED, STOPPED, None
            return ExperimentStatus.CANCELLED, None, None
        error = measuring.exception()
        if error is None:
            return ExperimentStatus.SUCCEEDED, None, measuring.result()
        if isinstance(
            error,
            PlanError | EngineError | MeasuringProcessError | SettingsNotAppliedError | ProblemError | StateFileError,
        ):
            return ExperimentStatus.FAILED, str(error), None
        _log.error("experiment_crashed", exc_info=error)
        return ExperimentStatus.FAILED, f"{type(error).__name__}: {error}; the log has the details", None

    async def _renew(self, experiment_id: str, measuring: asyncio.Task[ExperimentResult], ended: asyncio.Event) -> None:
        """Keep the claim; end the run when it was lost or a cancellation was asked for at another replica."""
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), min(1.0, self._lease_seconds / 3))
                return
            try:
                async with self._context.database.write() as session:
                    cancel = await runs.renew(session, experiment_id, self._lease())
            except (DBAPIError, PoolTimeoutError, OSError) as error:
                _log.warning("lease_not_renewed", reason=str(error))
                continue
            if cancel or cancel is None:
                _end_once(measuring)
            if cancel is None:
                return

    def _lease(self) -> runs.Lease:
        return runs.Lease(self._runner_id, utc_now() + timedelta(seconds=self._lease_seconds))


def _is_abandoned(row: ExperimentRow) -> bool:
    """Tell whether the process that runs an experiment is gone: its lease is over, or this machine has it no more.

    A process id that another program has taken since, or a container's 1, tells nothing; then the lease decides.
    """
    if row.lease_until is None or row.lease_until < utc_now():
        return True
    host, _, rest = (row.runner_id or "").partition(":")
    return host == _HOST and not Path("/proc", rest.partition(":")[0]).exists()


def _end_once(measuring: asyncio.Task[ExperimentResult]) -> None:
    """Cancel a run, but never twice: a second time would cut short the hand-over of the block in progress."""
    if not measuring.cancelling():
        measuring.cancel()
