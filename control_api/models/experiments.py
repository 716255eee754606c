"""Experiments in the database: made once, found again, listed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from paceline.control_api.db.tables import ArmRow, Base, ExperimentRow


@dataclass(frozen=True)
class Filters:
    """Which experiments a list holds; None does not filter. The bounds of time are exclusive."""

    namespaces: frozenset[str] | None = None
    profile: tuple[str, str] | None = None
    status: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


async def insert_once(session: AsyncSession, table: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row; return False, with nothing changed, where one with the same unique values is there already.

    A racing transaction with the same values is waited for, so exactly one caller gets True.
    """
    insert = sqlite_insert if session.get_bind().dialect.name == "sqlite" else postgresql_insert
    primary_key = next(iter(table.__table__.primary_key))
    # Both dialects' constructs have the same methods; the statement's type is that of either.
    statement = insert(table).values(**values).on_conflict_do_nothing().returning(primary_key)
    return (await session.execute(statement)).scalar_one_or_none() is not None


async def create(session: AsyncSession, values: dict[str, Any], arms: Sequence[dict[str, Any]]) -> bool:
    """Insert an experiment with its arms; return False where its idempotency key was used before."""
    if not await insert_once(session, ExperimentRow, values):
        return False
    session.add_all(ArmRow(experiment_id=values["id"], position=place, **arm) for place, arm in enumerate(arms))
    await session.flush()
    return True


async def by_key(session: AsyncSession, idempotency_key: str) -> ExperimentRow | None:
    """Return the experiment that was made with a key."""
    query = select(ExperimentRow).where(ExperimentRow.idempotency_key == idempotency_key)
    return (await session.execute(query)).scalar_one_or_none()


async def get(session: AsyncSession, experiment_id: str) -> ExperimentRow | None:
    """Return an experiment without its arms."""
    return await session.get(ExperimentRow, experiment_id)


async def get_with_arms(session: AsyncSession, experiment_id: str) -> ExperimentRow | None:
    """Return an experiment with its arms in order."""
    query = select(ExperimentRow).where(ExperimentRow.id == experiment_id).options(selectinload(ExperimentRow.arms))
    return (await session.execute(query)).scalar_one_or_none()


async def namespaces(session: AsyncSession) -> set[str]:
    """Return the namespaces of the profiles that experiments were made for."""
    return set(await session.scalars(select(ExperimentRow.profile_namespace).distinct()))


async def page(
    session: AsyncSession, filters: Filters, after: tuple[datetime, str] | None, limit: int
) -> Sequence[ExperimentRow]:
    """Return at most `limit` experiments, the newest first, that come after the one at `after` in this order."""
    query = select(ExperimentRow).order_by(ExperimentRow.created_at.desc(), ExperimentRow.id.desc()).limit(limit)
    if after is not None:
        query = query.where(tuple_(ExperimentRow.created_at, ExperimentRow.id) < after)
    if filters.namespaces is not None:
        query = query.where(ExperimentRow.profile_namespace.in_(filters.namespaces))
    if filters.profile is not None:
        query = query.where(tuple_(ExperimentRow.profile_namespace, ExperimentRow.profile_name) == filters.profile)
    if filters.status is not None:
        query = query.where(ExperimentRow.status == filters.status)
    if filters.created_after is not None:
        query = query.where(ExperimentRow.created_at > filters.created_after)
    if filters.created_before is not None:
        query = query.where(ExperimentRow.created_at < filters.created_before)
    return (await session.execute(query)).scalars().all()
