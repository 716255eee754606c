"""What the gate did, counted across processes: attention runs in worker processes, the admin port asks the engine core.

Each process counts in a small file of its own, mapped into memory; an engine core adds up those of its own rank.
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
    """Attention calls and their query rows that the kernel served, and calls left to the engine by reason.

    Every attention layer of every worker counts its own calls. `rank` is the engine's among data-parallel ones; it is
    set before the first call is counted.
    """

    rank: int = 0

    @cached_property
    def _values(self) -> memoryview:
        folder = os.environ.get(FOLDER)
        if not folder:
            return memoryview(bytearray(BYTES)).cast("q")
        with (Path(folder) / f"{self.rank}-{os.getpid()}").open("w+b") as file:
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

    def as_dict(self, rank: int = 0) -> dict[str, Any]:
        """Return the sums over all processes of the engine of a rank, as plain data."""
        sums = [sum(column) for column in zip(*self._of(rank), strict=True)]
        counts = dict(zip(NAMES, sums, strict=True))
        refused = {reason: counts[reason] for reason in REFUSALS if counts[reason]}
        return {"served": counts["served"], "servedRows": counts["servedRows"], "refused": refused}

    def _of(self, rank: int) -> list[list[int]]:
        folder = os.environ.get(FOLDER)
        if not folder:
            return [list(self._values)]
        files = [path.read_bytes() for path in Path(folder).glob(f"{rank}-*")]
        return [[0] * len(NAMES), *(list(memoryview(data).cast("q")) for data in files if len(data) == BYTES)]
