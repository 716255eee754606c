"""Puts this folder's harness on the path, and lets vLLM and torch warn about themselves."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    """Keep warnings errors for our code only: vLLM and what it imports use deprecated parts of each other."""
    for module in ("torch", "vllm", "transformers", "importlib", "numba", "<frozen importlib"):
        config.addinivalue_line("filterwarnings", f"ignore:::{module}.*")
