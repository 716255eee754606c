"""Puts this folder's helpers on the path, and builds what the tests run."""

import sys
from pathlib import Path

import pytest

from paceline.kernels.loader import CpuKernels, cpu_kernels

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    """Keep warnings errors for our code only."""
    config.addinivalue_line("filterwarnings", "ignore:::torch.*")


@pytest.fixture(scope="session")
def kernels() -> CpuKernels:
    """Return the library that the part's set-up built."""
    return cpu_kernels()
