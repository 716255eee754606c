"""Column types that behave alike on SQLite and PostgreSQL."""

from datetime import UTC, datetime

from sqlalchemy import DateTime
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: zone-aware in, UTC out.

    SQLite drops the zone and would read 10:00-08:00 back as 10:00 UTC, so every value is turned to UTC before it is
    bound, and the zone is put back when it is read.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn a zone-aware time to UTC; a time without a zone is a fault of the caller."""
        if value is None:
            return None
        if value.tzinfo is None:
            message = f"{value!r} has no time zone: store instants only"
            raise ValueError(message)
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the stored instant with the zone UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def utc_now() -> datetime:
    """Return the present instant."""
    return datetime.now(UTC)
