"""The schema: made once however many start at once, checked for its version, rebuilt without losing rows."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from api_support.apis import Api, running_api
from api_support.postgres import PostgresServer, pgbouncer
from api_support.servers import ApiProcess
from sqlalchemy.engine import make_url

from paceline.control_api.config import ApiConfig
from paceline.control_api.db.engine import make_engine
from paceline.control_api.db.migrate import migrate
from paceline.control_api.db.tables import Base
from paceline.control_api.errors import StartupError


def run(url: str, work: Callable[[sa.Connection], object], *, foreign_keys: bool = True) -> object:
    """Run `work` in a transaction on a database."""

    async def execute() -> object:
        config = ApiConfig.model_validate({"local_state": ".", "database_url": url})
        engine = make_engine(config.sqlalchemy_url, foreign_keys=foreign_keys)
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(work)
        finally:
            await engine.dispose()

    return asyncio.run(execute())


def migrated(url: str) -> str:
    asyncio.run(migrate(ApiConfig.model_validate({"local_state": ".", "database_url": url}).sqlalchemy_url))
    return url


def revision(url: str) -> object:
    return run(url, lambda connection: connection.scalar(sa.text("SELECT version_num FROM alembic_version")))


def test_the_migrations_make_exactly_the_tables_that_the_program_knows(database_url: str) -> None:
    def differences(connection: sa.Connection) -> object:
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), Base.metadata)

    assert run(migrated(database_url), differences) == []


def test_migrating_again_changes_nothing(database_url: str) -> None:
    migrated(database_url)
    before = revision(database_url)
    migrated(database_url)
    assert revision(database_url) == before == "0001"


@pytest.fixture
def processes(tmp_path: Path, state: Path) -> Iterator[Callable[..., ApiProcess]]:
    started = []

    def start(url: str, **environment: str) -> ApiProcess:
        variables = {"PACELINE_API_LOCAL_STATE": str(state), "PACELINE_API_DATABASE_URL": url, **environment}
        process = ApiProcess(variables, tmp_path / f"api-{len(started)}.log")
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def test_of_three_that_start_on_an_empty_database_one_migrates_and_all_serve(
    processes: Callable[..., ApiProcess], database_url: str
) -> None:
    three = [processes(database_url) for _ in range(3)]
    for process in three:
        process.wait_ready()
    assert sum(process.log.read_text().count('"event": "migrating"') for process in three) == 1
    assert revision(database_url) == "0001"


def test_a_newer_schema_is_told_apart_and_left_alone(processes: Callable[..., ApiProcess], database_url: str) -> None:
    migrated(database_url)
    run(database_url, lambda connection: connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")))
    process = processes(database_url)
    assert process.process.wait(180) == 1
    said = process.log.read_text()
    assert "the schema is ahead" in said
    assert "9999" in said
    assert "Traceback" not in said
    assert revision(database_url) == "9999"


def test_a_schema_that_moved_on_beneath_a_running_replica_makes_it_unready(
    start_api: Callable[..., Api], database_url: str
) -> None:
    api = start_api(database_url)
    assert api.client.get("/readyz").status_code == 200
    run(database_url, lambda connection: connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")))
    response = api.client.get("/readyz")
    assert response.status_code == 503
    assert "ahead" in response.json()["detail"]
    assert api.client.get("/healthz").status_code == 200


def _fill(connection: sa.Connection) -> None:
    experiments, arms = Base.metadata.tables["experiments"], Base.metadata.tables["arms"]
    now = sa.text("CURRENT_TIMESTAMP")
    values = {"id": "e1", "name": "n", "profile_namespace": "lab", "profile_name": "tiny", "status": "Succeeded"}
    flags = {"seed": 0, "plan": {}, "profile": {}, "cancel_requested": False, "restore_pending": False, "version": 0}
    connection.execute(experiments.insert().values(created_at=now, **values, **flags))
    connection.execute(arms.insert().values(experiment_id="e1", position=0, name="a", settings={}))


def _rebuild(connection: sa.Connection) -> None:
    """What a later migration does on SQLite to change a column: make the table anew, copy it, drop the old one."""
    operations = Operations(MigrationContext.configure(connection))
    with operations.batch_alter_table("experiments", recreate="always") as batch:
        batch.alter_column("name", type_=sa.String(200))


@pytest.mark.parametrize(("foreign_keys", "arms_left"), [(False, 1), (True, 0)])
def test_a_rebuilt_table_keeps_its_children_only_without_foreign_keys(
    sqlite_url: str, *, foreign_keys: bool, arms_left: int
) -> None:
    # The second case shows why migrations switch them off: dropping the old table deletes its children.
    run(migrated(sqlite_url), _fill)
    run(sqlite_url, _rebuild, foreign_keys=foreign_keys)
    count = run(sqlite_url, lambda connection: connection.scalar(sa.text("SELECT count(*) FROM arms")))
    assert count == arms_left


def test_foreign_keys_are_enforced_outside_of_migrations(database_url: str) -> None:
    migrated(database_url)
    arms = Base.metadata.tables["arms"]
    orphan = arms.insert().values(experiment_id="nobody", position=0, name="a", settings={})
    with pytest.raises(sa.exc.IntegrityError):
        run(database_url, lambda connection: connection.execute(orphan))


def test_a_database_that_can_not_be_written_is_named_with_what_to_do(
    processes: Callable[..., ApiProcess], tmp_path: Path, sqlite_url: str
) -> None:
    run(migrated(sqlite_url), _fill)
    # Permissions don't stop root, so the file is opened read-only instead.
    process = processes(f"sqlite:///file:{tmp_path / 'paceline.db'}?mode=ro&uri=true")
    assert process.process.wait(180) == 1
    said = process.log.read_text()
    assert "readonly" in said
    assert "must be able to write" in said
    assert "Traceback" not in said
    assert run(sqlite_url, lambda connection: connection.scalar(sa.text("SELECT count(*) FROM experiments"))) == 1


def test_a_folder_where_no_file_can_be_made_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StartupError, match="must be able to write"):
        migrated(f"sqlite:///{tmp_path / 'file' / 'paceline.db'}")


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "paceline.db"
    path.write_bytes(b"this is somebody's letter, not a database at all" * 100)
    content = path.read_bytes()
    with pytest.raises(StartupError, match="not a database"):
        migrated(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StartupError) as raised:
        migrated("postgresql://paceline:s3cret@127.0.0.1:1/paceline")
    assert "127.0.0.1:1" in str(raised.value)
    assert "PACELINE_API_DATABASE_URL" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_write_ahead_logging_is_on_in_the_file(sqlite_url: str) -> None:
    path = make_url(migrated(sqlite_url)).database
    assert path is not None
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_three_replicas_migrate_and_serve_through_pgbouncer_in_transaction_mode(
    processes: Callable[..., ApiProcess], postgres: PostgresServer, state: Path
) -> None:
    database = postgres.new_database()
    with pgbouncer(postgres) as port, ExitStack() as stack:
        url = postgres.url(database, port=port)
        three = [processes(url) for _ in range(3)]
        for process in three:
            process.wait_ready()
        assert sum(process.log.read_text().count('"event": "migrating"') for process in three) == 1
        # More statements than server connections, so that each one meets another server process than the one before.
        api = stack.enter_context(running_api(state, url))
        for _ in range(30):
            assert api.client.get("/v1/experiments").json() == {"items": [], "nextCursor": None}
