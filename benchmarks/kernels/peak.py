"""The rate of multiply-adds that one thread reaches here, measured with a loop that only touches registers."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

from paceline.kernels.build_cpu import find_compiler

LEVELS = ("avx2", "avx512", "amx")


class Peak:
    """Compiles the loop; `gflops` runs it."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "peak.so"
            source = Path(__file__).with_name("peak.cpp")
            flags = ["-O3", "-std=c++17", "-mavx2", "-mfma", "-shared", "-fPIC"]
            subprocess.run([find_compiler(), *flags, str(source), "-o", str(library)], check=True)
            self._library = ctypes.CDLL(str(library))

    def gflops(self, level: str) -> float | None:
        """Return the best of several runs, as measured now; None for a level without a loop."""
        if level not in LEVELS:
            return None
        function = getattr(self._library, f"peak_{level}")
        function.restype = ctypes.c_double
        return max(float(function()) for _ in range(8))
