"""A local run with a fake engine, and control APIs before it on real ports."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from api_support.fake_engine import TOKEN, FakeEngine
from api_support.servers import serve
from api_support.state import API_TOKEN, point_at_engine, write_state
from paceline.control_api.app import create_app
from paceline.control_api.config import ApiConfig
from paceline.control_api.db.migrate import migrate


@dataclass(frozen=True)
class Api:
    """A running control API and a client that has its token."""

    url: str
    client: httpx.Client


@contextmanager
def local_run(engine: FakeEngine, folder: Path) -> Iterator[Path]:
    """Run the fake engine and yield the folder that `paceline up` would have made for it."""
    write_state(folder, TOKEN)
    with serve(engine.app()) as url:
        point_at_engine(folder, url, url)
        yield folder


@contextmanager
def running_api(state: Path, database_url: str, **settings: object) -> Iterator[Api]:
    """Migrate the database and run a control API on it, in a thread of this process."""
    config = ApiConfig.model_validate({"local_state": state, "database_url": database_url, **settings})
    with ThreadPoolExecutor(1) as thread:  # Playwright keeps an event loop running in the main thread
        thread.submit(lambda: asyncio.run(migrate(config.sqlalchemy_url))).result()
    headers = {"Authorization": f"Bearer {API_TOKEN}"}
    with serve(create_app(config)) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        client.timeout = httpx.Timeout(60)
        # FastAPI builds its routes at the first request; apps in several threads must not do so at once.
        client.get("/v1/nothing")
        yield Api(url, client)
