"""Real Chromium before the real app on a real SQLite file, with a fake engine behind it."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "api"))

from api_support.apis import Api, local_run, running_api
from api_support.fake_engine import FakeEngine
from browser_visit import Visit

from paceline.control_api import logs
from paceline.control_api.config import LogFormat

logs.configure("warning", LogFormat.JSON)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "chromium is missing: bash scripts/apt_install.sh chromium chromium"
    with sync_playwright() as playwright:
        # Chromium's sandbox does not start as root, and /dev/shm is small in containers.
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def state(engine: FakeEngine, tmp_path: Path) -> Iterator[Path]:
    with local_run(engine, tmp_path / "state") as folder:
        yield folder


@pytest.fixture
def api(state: Path) -> Iterator[Api]:
    with running_api(state, f"sqlite:///{state / 'paceline.db'}") as api:
        yield api


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(color_scheme="light", locale="en-US", timezone_id="UTC")
    # Under load a busy machine needs long for what takes a moment.
    context.set_default_timeout(120_000)
    yield context
    context.close()


@pytest.fixture
def visit(context: BrowserContext, api: Api) -> Iterator[Visit]:
    """A page that must end without an error in its console and without a request to anybody else."""
    page = context.new_page()
    visit = Visit(page, api.url)
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on(
        "console",
        # A refused request is shown to the user, and the browser's own line about it can't be switched off.
        lambda message: (
            visit.errors.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    page.on("request", lambda request: visit.requested.append(request.url))
    yield visit
    assert visit.errors == []
    assert [url for url in visit.requested if not url.startswith(api.url)] == []
