"""Which vLLM these tests run on, what it can't do, and which tests it is therefore not asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vllm.version import __version__ as ENGINE  # noqa: N812 - the one thing that names the engine here


@dataclass(frozen=True)
class Support:
    """What Paceline does on an engine: the features of its compatibility table, and test files left out, with why.

    Property tests look for faults of ours on the main engine, and with fewer examples for what is different on another.
    """

    features: frozenset[str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    examples: int = 20


EVERYTHING: Final = Support(frozenset({"pacing", "admin", "coalescing", "page_gate"}), examples=60)
KNOWN: Final[Mapping[str, Support]] = {
    "0.22.1": Support(
        frozenset({"pacing", "admin", "registration"}),
        {
            "test_coalescing_*.py": "0.22.1 serves no text-only Qwen3.5, and its caches and states are others",
            "test_page_gate*.py": "its CPU attention and the page sizes of its hybrid models are others",
        },
    ),
    "0.32.0": EVERYTHING,
    "0.33.0": Support(
        frozenset({"pacing", "admin"}),
        {
            "test_coalescing_*.py": "no CPU wheel exists: without kernels no state can be computed or compared",
            "test_page_gate*.py": "no CPU wheel exists: without kernels no attention can run",
        },
    ),
}
SUPPORT: Final = KNOWN.get(ENGINE, EVERYTHING)
"""An engine that nobody has looked at is asked everything."""
