"""The CPU twin as the tests run it: the levels of this processor, and on x86 those above AVX2 emulated as well."""

from pathlib import Path

import torch
from toolchain import compile_cpp, emulated_cpu_objects

from paceline.kernels import build_cpu
from paceline.kernels.arguments import PagedPrefill
from paceline.kernels.loader import CpuKernels, cpu_kernels

EMULATED_SUFFIX = "-emulated"
EMULATED = {
    torch.float32: ("avx512",) if "level_avx512.cpp" in build_cpu.units() else (),
    torch.bfloat16: ("avx512", "amx") if "level_amx.cpp" in build_cpu.units() else (),
}


def levels_under_test(dtype: torch.dtype) -> tuple[str, ...]:
    """Return the names of a dtype's levels: those that run here, then the emulated ones."""
    return (*cpu_kernels().levels(dtype), *(f"{level}{EMULATED_SUFFIX}" for level in EMULATED[dtype]))


class Twin:
    """Runs a level by its name in `levels_under_test`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._emulated: CpuKernels | None = None

    def levels(self, dtype: torch.dtype) -> tuple[str, ...]:
        """Return the levels that this processor runs itself."""
        return cpu_kernels().levels(dtype)

    def run(self, call: PagedPrefill, level: str) -> None:
        """Run a call on a level, with its own instructions or emulated ones."""
        if level.endswith(EMULATED_SUFFIX):
            self.emulated().run(call, level.removesuffix(EMULATED_SUFFIX))
        else:
            cpu_kernels().run(call, level)

    def emulated(self) -> CpuKernels:
        """Return the library of emulated levels, built at the first call."""
        if self._emulated is None:
            library = self._folder / "emulated_cpu.so"
            objects = emulated_cpu_objects(self._folder)
            compile_cpp(Path(objects[0]), library, "-shared", *objects[1:])
            self._emulated = CpuKernels(library)
        return self._emulated
