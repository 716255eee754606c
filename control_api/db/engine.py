"""Database connections and sessions, with the settings that each backend needs to be safe under many writers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

BUSY_TIMEOUT_SECONDS: Final = 30
BEGIN_OPTION: Final = "paceline_sqlite_begin"


def make_engine(url: URL, *, pool_size: int | None = None, foreign_keys: bool = True) -> AsyncEngine:
    """Return an engine; without a `pool_size`, every connection is closed after its use.

    `foreign_keys=False` holds for SQLite's migrations only, where a table is rebuilt under its children.
    """
    options: dict[str, Any] = {"hide_parameters": True}
    if pool_size is None:
        options["poolclass"] = NullPool
    else:
        # Every connection of the pool is kept: opening one costs more than the queries here.
        options |= {"pool_size": pool_size, "max_overflow": 0, "pool_timeout": BUSY_TIMEOUT_SECONDS}
    if url.get_backend_name() == "sqlite":
        engine = create_async_engine(url, connect_args={"timeout": BUSY_TIMEOUT_SECONDS}, **options)
        _install_sqlite(engine, foreign_keys=foreign_keys)
        return engine
    # Unnamed, uncached statements: PgBouncer in transaction mode hands the next transaction to another server process.
    arguments = {"statement_cache_size": 0, "prepared_statement_name_func": str, "timeout": 10}
    url = url.update_query_dict({"prepared_statement_cache_size": "0"})
    return create_async_engine(url, connect_args=arguments, pool_pre_ping=True, **options)


def _install_sqlite(engine: AsyncEngine, *, foreign_keys: bool) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        # The driver's own BEGIN comes too late for a consistent read, so it is switched off and done below.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(BEGIN_OPTION, 'DEFERRED')}")


class Database:
    """Sessions for reading and for writing."""

    def __init__(self, url: URL, *, pool_size: int) -> None:
        self.url = url
        self.engine = make_engine(url, pool_size=pool_size)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._writing = self.engine.execution_options(**{BEGIN_OPTION: "IMMEDIATE"})
        # SQLite has one writer at a time: waiting here is fair, and pins no connection meanwhile.
        self._writer = asyncio.Lock() if self.is_sqlite else None

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """Yield a session for reading; it sees one snapshot."""
        async with AsyncSession(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """Yield a session that holds the write lock from its first statement and commits at the end.

        On SQLite a transaction that reads and then writes fails at once when another one wrote in between, whatever
        the busy timeout; BEGIN IMMEDIATE takes the lock first instead.
        """
        async with (
            self._writer or nullcontext(),
            AsyncSession(self._writing, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()
