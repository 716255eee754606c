"""Puts this folder's helpers on the path, and builds what the tests run."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from twin import Twin


def pytest_configure(config: pytest.Config) -> None:
    """Keep warnings errors for our code only."""
    config.addinivalue_line("filterwarnings", "ignore:::torch.*")


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """Return the library that the part's set-up built, and the emulated one beside it."""
    return Twin(tmp_path_factory.mktemp("twin"))
