"""One real engine for all tests of this folder: the tiny model on CPU."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from engine_process import START_SECONDS, Engine, Launch, running, tiny_spec


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test the time that the engine takes to start."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(START_SECONDS + 600))


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that starts unpaced, at epoch 0 and revision 0; tests raise the revision."""
    with running(Launch(tmp_path_factory.mktemp("engine"), tiny_spec())) as started:
        yield started
