"""What the gate did, counted across processes: attention runs in worker processes, the admin port asks the engine core.

Each process counts in a small file of its own, mapped into memory; whoever reads adds all of them up.
"""

import atexit
import mmap
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from paceline.kernels.dispatch import RULES

FOLDER: Final = "PACELINE_PAGE_GATE_COUNTERS"
"""Names the folder of the counters to the processes that an engine starts."""
REFUSALS: Final = tuple(rule.reason for rule in RULES)
NAMES: Final = ("served", "servedRows", *REFUSALS)
BYTES: Final = 8 * len(NAMES)


def share_counters(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make the folder of the counters, unless an engine's first process has made it; it goes when that process ends."""
    if not environ.get(FOLDER):
        environ[FOLDER] = tempfile.mkdtemp(prefix="paceline-page-gate-")
        atexit.register(shutil.rmtree, environ[FOLDER], ignore_errors=True)


class GateCounters:
    """Attention calls and their query rows that the kernel served, and calls left to the engine by reason."""

    @cached_property
    def _values(self) -> memoryview:
        folder = os.environ.get(FOLDER)
        if not folder:
            return memoryview(bytearray(BYTES)).cast("q")
        with (Path(folder) / str(os.getpid())).open("w+b") as file:
            file.truncate(BYTES)
            return memoryview(mmap.mmap(file.fileno(), BYTES)).cast("q")

    def serve(self, rows: int) -> None:
        """Count a call that the kernel served."""
        self._values[0] += 1
        self._values[1] += rows

    def refuse(self, reasons: tuple[str, ...]) -> None:
        """Count a call left to the engine, under each of its reasons."""
        for reason in reasons:
            self._values[NAMES.index(reason)] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return the sums over all processes of the engine, as plain data."""
        sums = [sum(column) for column in zip(*self._everybody(), strict=True)]
        counts = dict(zip(NAMES, sums, strict=True))
        refused = {reason: counts[reason] for reason in REFUSALS if counts[reason]}
        return {"served": counts["served"], "servedRows": counts["servedRows"], "refused": refused}

    def _everybody(self) -> list[list[int]]:
        own = list(self._values)
        folder = os.environ.get(FOLDER)
        others = [path for path in Path(folder).iterdir() if path.name != str(os.getpid())] if folder else []
        return [own, *(list(memoryview(data).cast("q")) for path in others if len(data := path.read_bytes()) == BYTES)]
