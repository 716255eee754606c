"""The tables: an experiment, its arms, their blocks and requests, and what was concluded.

What is filtered, ordered or joined by is a column; the rest of a record is kept whole in `record`, in the form of
`paceline.bench.records`, so that nothing measured is lost to the schema.
"""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from paceline.control_api.db.types import UtcDateTime

# Constraints need names, or a migration can't drop them.
NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Document = dict[str, Any]
"""A JSON object."""


class Base(DeclarativeBase):
    """The base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime, Document: JSON(none_as_null=True)}  # noqa: RUF012 (SQLAlchemy's own declaration)


class ExperimentRow(Base):
    """One experiment: what was asked, who runs it, how far it is, and how it ended.

    `runner_id` and `lease_until` say which process runs it and until when that process must have renewed its claim;
    `settings_before` is what the profile is put back to at the end, which `restore_pending` says is still to be done.
    `version` grows with every change that a watcher is told of.
    """

    __tablename__ = "experiments"
    __table_args__ = (
        Index("ix_experiments_created_at_id", "created_at", "id"),
        Index("ix_experiments_status_created_at", "status", "created_at"),
        Index(
            "uq_experiments_running_profile",
            "profile_namespace",
            "profile_name",
            unique=True,
            sqlite_where=text("status = 'Running'"),
            postgresql_where=text("status = 'Running'"),
        ),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    profile_namespace: Mapped[str] = mapped_column(String(63))
    profile_name: Mapped[str] = mapped_column(String(253))
    status: Mapped[str] = mapped_column(String(16))
    seed: Mapped[int] = mapped_column(BigInteger)
    plan: Mapped[Document]
    profile: Mapped[Document]
    engine: Mapped[Document | None]
    clock: Mapped[Document | None]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    failure: Mapped[str | None] = mapped_column(Text)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    runner_id: Mapped[str | None] = mapped_column(String(64))
    lease_until: Mapped[datetime | None]
    settings_before: Mapped[Document | None]
    restore_pending: Mapped[bool] = mapped_column(default=False)
    progress: Mapped[Document | None]
    version: Mapped[int] = mapped_column(Integer, default=0)
    idempotency_key: Mapped[str | None] = mapped_column(String(255), unique=True)
    request_digest: Mapped[str | None] = mapped_column(String(64))

    arms: Mapped[list["ArmRow"]] = relationship(order_by="ArmRow.position", lazy="raise")


class ArmRow(Base):
    """One arm with the settings it runs, and its medians once the experiment has ended."""

    __tablename__ = "arms"
    __table_args__ = (UniqueConstraint("experiment_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    position: Mapped[int]
    name: Mapped[str] = mapped_column(String(64))
    settings: Mapped[Document]
    result: Mapped[Document | None]


class BlockRow(Base):
    """One block of one arm."""

    __tablename__ = "blocks"
    __table_args__ = (UniqueConstraint("experiment_id", "position"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    arm_id: Mapped[int] = mapped_column(ForeignKey("arms.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    block: Mapped[int]
    warm_up: Mapped[bool]
    revision: Mapped[int | None]
    record: Mapped[Document]


class RequestRow(Base):
    """One request; `record` holds the raw timestamps of its chunks."""

    __tablename__ = "requests"
    __table_args__ = (
        UniqueConstraint("experiment_id", "request_id"),
        Index("ix_requests_experiment_id_id", "experiment_id", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    arm_id: Mapped[int] = mapped_column(ForeignKey("arms.id", ondelete="CASCADE"), index=True)
    block: Mapped[int]
    warm_up: Mapped[bool]
    request_id: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    record: Mapped[Document]


class ResultRow(Base):
    """One comparison: an arm's metric as a ratio to the baseline's, with its interval and verdict."""

    __tablename__ = "results"
    __table_args__ = (UniqueConstraint("experiment_id", "arm", "metric"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    arm: Mapped[str] = mapped_column(String(64))
    baseline: Mapped[str] = mapped_column(String(64))
    metric: Mapped[str] = mapped_column(String(64))
    ratio: Mapped[float | None] = mapped_column(Float)
    ratio_low: Mapped[float | None] = mapped_column(Float)
    ratio_high: Mapped[float | None] = mapped_column(Float)
    blocks: Mapped[int | None]
    verdict: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)


class AuditRow(Base):
    """One check of whether an experiment's numbers may be believed."""

    __tablename__ = "audits"

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    arm: Mapped[str | None] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)
