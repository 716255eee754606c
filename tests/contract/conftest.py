"""Puts this folder's harness on the path, lets vLLM warn about itself, and chooses tests by the engine."""

import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from engines import ENGINE, SUPPORT

collect_ignore_glob = list(SUPPORT.left_out)


def pytest_configure(config: pytest.Config) -> None:
    """Keep warnings errors for our code only: vLLM and what it imports use deprecated parts of each other."""
    for module in ("torch", "vllm", "transformers", "importlib", "numba", "<frozen importlib"):
        config.addinivalue_line("filterwarnings", f"ignore:::{module}.*")


def pytest_sessionstart() -> None:
    """Let vLLM look at the Llama of these tests here: it would start a process, which imports everything, to do so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm import ModelRegistry
        from vllm.model_executor.models.llama import LlamaForCausalLM
    ModelRegistry.register_model("LlamaForCausalLM", LlamaForCausalLM)


def pytest_report_header() -> list[str]:
    """Say which engine the tests run on, and what it is not asked."""
    return [f"engine: vLLM {ENGINE}", *(f"not on it: {name}: {why}" for name, why in SUPPORT.left_out.items())]
