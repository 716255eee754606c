"""The rate of multiply-adds that this machine reaches, measured with a loop that only touches registers."""

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from paceline.kernels.build_cpu import find_compiler

FLAGS: Final = {
    "avx2": ("-mavx2", "-mfma", "-DVECTOR_BYTES=32"),
    "avx512": ("-mavx512f", "-DVECTOR_BYTES=64"),
    "amx": ("-mamx-tile", "-mamx-bf16"),
}
"""How the loop of each level is compiled."""


class Peak:
    """Compiles the loop of a level when first asked for it."""

    def __init__(self) -> None:
        self._loops: dict[str, Callable[[], float]] = {}

    def gflops(self, level: str) -> float | None:
        """Return one thread's best of several runs, as measured now; None for a level without a loop."""
        if level not in FLAGS:
            return None
        return max(self._loop(level)() for _ in range(8))

    def two_threads_over_one(self, level: str) -> float:
        """Return how much faster two threads finish twice the loop than one does, by the clock on the wall."""
        loop = self._loop(level)
        with ThreadPoolExecutor(2) as pool:

            def seconds(threads: int) -> float:
                start = time.perf_counter()
                list(pool.map(lambda _: loop(), range(threads)))
                return time.perf_counter() - start

            return 2 * min(seconds(1) for _ in range(8)) / min(seconds(2) for _ in range(8))

    def _loop(self, level: str) -> Callable[[], float]:
        if level not in self._loops:
            with tempfile.TemporaryDirectory() as folder:
                library = Path(folder) / f"peak_{level}.so"
                flags = ["-O3", "-std=c++17", "-ffp-contract=fast", *FLAGS[level], "-shared", "-fPIC"]
                command = [find_compiler(), *flags, str(Path(__file__).with_name("peak.cpp")), "-o", str(library)]
                subprocess.run(command, check=True)
                function = ctypes.CDLL(str(library)).peak
            function.restype = ctypes.c_double
            self._loops[level] = function
        return self._loops[level]
