"""A local run's folder with a fake engine, a control API on a real port before it, on SQLite and on PostgreSQL."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from api_support.apis import Api, local_run, running_api
from api_support.fake_engine import FakeEngine
from api_support.postgres import PostgresServer, postgres_server

from paceline.control_api import logs
from paceline.control_api.config import LogFormat

logs.configure("warning", LogFormat.JSON)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'paceline.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """The address of an empty database of either kind."""
    if request.param == "sqlite":
        return sqlite_url
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.new_database())


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def state(engine: FakeEngine, tmp_path: Path) -> Iterator[Path]:
    with local_run(engine, tmp_path / "state") as folder:
        yield folder


@pytest.fixture
def start_api(state: Path) -> Iterator[Callable[..., Api]]:
    """Start a control API on a database, as often as wanted: each call is one more replica."""
    with ExitStack() as stack:
        yield lambda url, **settings: stack.enter_context(running_api(state, url, **settings))


@pytest.fixture
def api(start_api: Callable[..., Api], sqlite_url: str) -> Api:
    """A control API on SQLite, for what does not depend on the database."""
    return start_api(sqlite_url)
