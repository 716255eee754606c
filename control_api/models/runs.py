"""Who runs which experiment: claims with a lease, progress, ends. Every function needs a writing session."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import exists, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from paceline.control_api.db.tables import Document, ExperimentRow
from paceline.control_api.schemas.experiments import ExperimentStatus


@dataclass(frozen=True)
class Lease:
    """The claim of one process on an experiment, valid until it must have been renewed."""

    runner_id: str
    until: datetime


async def queued_profiles(session: AsyncSession) -> set[tuple[str, str]]:
    """Return the profiles that an experiment waits for."""
    query = (
        select(ExperimentRow.profile_namespace, ExperimentRow.profile_name)
        .where(ExperimentRow.status == ExperimentStatus.QUEUED)
        .distinct()
    )
    return {(namespace, name) for namespace, name in await session.execute(query)}


async def claim_next(
    session: AsyncSession, profiles: Sequence[tuple[str, str]], lease: Lease, now: datetime
) -> ExperimentRow | None:
    """Claim the oldest queued experiment of these profiles whose profile is not being measured; None without one.

    Raises IntegrityError where another process claimed one of the same profile at the same moment.
    """
    running = aliased(ExperimentRow)
    same_profile = tuple_(running.profile_namespace, running.profile_name) == tuple_(
        ExperimentRow.profile_namespace, ExperimentRow.profile_name
    )
    query = (
        select(ExperimentRow)
        .where(ExperimentRow.status == ExperimentStatus.QUEUED)
        .where(tuple_(ExperimentRow.profile_namespace, ExperimentRow.profile_name).in_(profiles))
        .where(~exists().where(running.status == ExperimentStatus.RUNNING, same_profile))
        .order_by(ExperimentRow.created_at, ExperimentRow.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=ExperimentRow)
    )
    row = (await session.execute(query)).scalar_one_or_none()
    if row is None:
        return None
    row.status = ExperimentStatus.RUNNING
    row.started_at = now
    row.runner_id, row.lease_until = lease.runner_id, lease.until
    row.version += 1
    await session.flush()
    return row


async def renew(session: AsyncSession, experiment_id: str, lease: Lease) -> bool | None:
    """Renew a claim; return whether a cancellation was asked for, or None where the claim was lost."""
    row = await _mine(session, experiment_id, lease.runner_id)
    if row is None:
        return None
    row.lease_until = lease.until
    return row.cancel_requested


async def set_progress(session: AsyncSession, experiment_id: str, progress: Document) -> None:
    """Keep the latest moment of a run."""
    await _bump(session, experiment_id, progress=progress)


async def set_before(session: AsyncSession, experiment_id: str, settings: Document) -> None:
    """Keep the settings that the profile is put back to at the end."""
    await _bump(session, experiment_id, settings_before=settings, restore_pending=True)


async def set_restored(session: AsyncSession, experiment_id: str) -> None:
    """Note that the profile has its own settings again, or that somebody has given it others."""
    await _bump(session, experiment_id, restore_pending=False)


async def finish(
    session: AsyncSession, experiment_id: str, runner_id: str, status: ExperimentStatus, **values: Any
) -> bool:
    """End a run that is still claimed by this runner; return False, with nothing changed, where it is not."""
    row = await _mine(session, experiment_id, runner_id)
    if row is None:
        return False
    row.status, row.lease_until = status, None
    for name, value in values.items():
        setattr(row, name, value)
    row.version += 1
    return True


async def running(session: AsyncSession) -> Sequence[ExperimentRow]:
    """Return the experiments that run, whoever runs them, locked until the session ends."""
    query = select(ExperimentRow).where(ExperimentRow.status == ExperimentStatus.RUNNING).with_for_update()
    return (await session.execute(query)).scalars().all()


def interrupt(row: ExperimentRow, now: datetime, failure: str) -> None:
    """End a run whose process is gone; its rows stay."""
    row.status, row.failure, row.ended_at, row.lease_until = ExperimentStatus.INTERRUPTED, failure, now, None
    row.version += 1


async def to_restore(session: AsyncSession) -> Sequence[ExperimentRow]:
    """Return the ended experiments whose profiles' settings are still to be put back, the oldest first."""
    ended = [status for status in ExperimentStatus if status.ended]
    query = (
        select(ExperimentRow)
        .where(ExperimentRow.restore_pending, ExperimentRow.status.in_(ended))
        .order_by(ExperimentRow.started_at)
    )
    return (await session.execute(query)).scalars().all()


async def running_on(session: AsyncSession, profile: tuple[str, str]) -> ExperimentRow | None:
    """Return the experiment that measures a profile now."""
    query = select(ExperimentRow).where(
        ExperimentRow.status == ExperimentStatus.RUNNING,
        tuple_(ExperimentRow.profile_namespace, ExperimentRow.profile_name) == profile,
    )
    return (await session.execute(query)).scalar_one_or_none()


async def request_cancel(session: AsyncSession, experiment_id: str, now: datetime) -> ExperimentRow | None:
    """End a queued experiment, or ask the runner of a running one to end it; return its row."""
    query = select(ExperimentRow).where(ExperimentRow.id == experiment_id).with_for_update()
    row = (await session.execute(query)).scalar_one_or_none()
    if row is None or ExperimentStatus(row.status).ended or row.cancel_requested:
        return row
    row.cancel_requested = True
    row.version += 1
    if row.status == ExperimentStatus.QUEUED:
        row.status, row.ended_at = ExperimentStatus.CANCELLED, now
    return row


async def _mine(session: AsyncSession, experiment_id: str, runner_id: str) -> ExperimentRow | None:
    query = (
        select(ExperimentRow)
        .where(ExperimentRow.id == experiment_id, ExperimentRow.runner_id == runner_id)
        .where(ExperimentRow.status == ExperimentStatus.RUNNING)
        .with_for_update()
    )
    return (await session.execute(query)).scalar_one_or_none()


async def _bump(session: AsyncSession, experiment_id: str, **values: Any) -> None:
    statement = (
        update(ExperimentRow)
        .where(ExperimentRow.id == experiment_id)
        .values(version=ExperimentRow.version + 1, **values)
    )
    await session.execute(statement)
