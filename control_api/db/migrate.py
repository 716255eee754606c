"""Bring the database to this version's schema, safely when several replicas start at once."""

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Final

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from paceline.control_api.db.engine import BEGIN_OPTION, make_engine
from paceline.control_api.errors import StartupError

MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Any number will do, as long as every version of the program uses the same.
ADVISORY_LOCK: Final = 7_238_501_946

_log = structlog.get_logger(__name__)


class SchemaState(StrEnum):
    """How the database's schema compares with the one that this program knows."""

    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"


def alembic_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; the address never passes through its ini format, where % has a meaning."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def schema_state(connection: Connection) -> tuple[SchemaState, str | None]:
    """Return how the schema compares, and the revision that the database is at (None for an empty one)."""
    scripts = ScriptDirectory.from_config(alembic_config())
    revision = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if revision is not None and revision not in known:
        return SchemaState.AHEAD, revision
    return (SchemaState.CURRENT if revision == scripts.get_current_head() else SchemaState.BEHIND), revision


async def migrate(url: URL) -> str | None:
    """Upgrade the database and return the revision that it was at before.

    Replicas that start at once wait for each other; all but the first find nothing left to do.

    Raises:
        StartupError: the database can't be reached or written, or a newer version has migrated it.
    """
    shown = url.render_as_string(hide_password=True)
    engine = make_engine(url, foreign_keys=False)
    try:
        if url.get_backend_name() == "sqlite":
            await _prepare_sqlite(url)
        async with engine.execution_options(**{BEGIN_OPTION: "IMMEDIATE"}).begin() as connection:
            return await _upgrade(connection, shown)
    except (DBAPIError, OSError) as error:
        reason = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise StartupError(f"the database {shown} can't be used: {reason}. {_hint(url, reason)}") from error
    finally:
        await engine.dispose()


async def _prepare_sqlite(url: URL) -> None:
    """Switch to write-ahead logging, which lasts in the file: readers then never wait for the writer."""
    if url.database and not url.database.startswith("file:"):
        await asyncio.to_thread(Path(url.database).parent.mkdir, parents=True, exist_ok=True)
    engine = make_engine(url)
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        await driver.execute("PRAGMA journal_mode = WAL")
    await engine.dispose()


async def _upgrade(connection: AsyncConnection, shown: str) -> str | None:
    if connection.dialect.name == "postgresql":
        # Bound to the transaction: a session's lock is lost where PgBouncer pools by transaction.
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
    state, revision = await connection.run_sync(schema_state)
    if state is SchemaState.AHEAD:
        message = (
            f"the schema is ahead: the database {shown} is at revision {revision}, which this version of Paceline does "
            "not know, so a newer version has migrated it. Start that version, or restore a backup from before"
        )
        raise StartupError(message)
    if state is SchemaState.BEHIND:
        _log.info("migrating", database=shown, revision=revision or "empty")
        await connection.run_sync(lambda sync: command.upgrade(alembic_config(sync), "head"))
        await _check_foreign_keys(connection)
    # SQLite lets a read-only file pass until the first write: it is to be known now, not at the first experiment.
    await connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
    return revision


async def _check_foreign_keys(connection: AsyncConnection) -> None:
    if connection.dialect.name != "sqlite":
        return
    broken = (await connection.exec_driver_sql("PRAGMA foreign_key_check")).fetchall()
    if broken:
        message = f"the migration would leave {len(broken)} rows without the row they refer to; nothing was changed"
        raise StartupError(message)


def _hint(url: URL, reason: str) -> str:
    if url.get_backend_name() != "sqlite":
        return "Check that the server runs, and the host, the user and the password in PACELINE_API_DATABASE_URL"
    if "locked" in reason:
        return "Another program holds it; stop that one, or wait"
    return "The control API must be able to write the file and its folder: check owner, permissions and mount options"
