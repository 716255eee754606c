"""Compilers that the tests call: g++ for emulated and sanitized builds, NVRTC for the GPU's."""

import ctypes
import os
import subprocess
from pathlib import Path

import paceline.kernels
from paceline.kernels import build_cpu
from paceline.kernels.build_cpu import find_compiler

KERNELS = Path(paceline.kernels.__file__).resolve().parent
ROOT = KERNELS.parent
EMULATION_FLAGS = (
    *("-std=c++17", "-O2", "-march=native", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror"),
    # The pragmas are CUDA's; the undefined registers are in GCC 12's own headers.
    *("-Wno-unknown-pragmas", "-Wno-maybe-uninitialized", "-Wno-uninitialized"),
)
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def compile_cpp(source: Path, output: Path, *flags: str) -> None:
    """Compile and link one source file; a failure carries the compiler's output."""
    done = subprocess.run([find_compiler(), *flags, str(source), "-o", str(output)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def emulated_driver(folder: Path, tile: int, source: Path = KERNELS / "emulation" / "driver.cpp") -> ctypes.CDLL:
    """Build the emulated CUDA driver for a tile, and load it."""
    library = folder / f"emulated_{tile}.so"
    include = f"-I{KERNELS / 'emulation'}"
    compile_cpp(source, library, *EMULATION_FLAGS, "-shared", include, f"-DPACELINE_TILE_TOKENS={tile}")
    return ctypes.CDLL(str(library))


def emulated_cpu_objects(folder: Path, *flags: str) -> list[str]:
    """Compile the CPU levels for any processor with AVX2: those above it run on emulated instructions (x86 only)."""
    include, key = f"-I{KERNELS / 'emulation' / 'x86'}", '-DPACELINE_BUILD_KEY="emulated"'
    objects = []
    for source in build_cpu.units():
        own = () if source == "level_avx2.cpp" else (include,)
        if source == "level_amx.cpp":
            own = (*own, "-D__AVX512BF16__")  # processors with AMX have it
        objects.append(str(folder / f"{source}.o"))
        compile_cpp(
            KERNELS / "cpu" / source,
            Path(objects[-1]),
            *build_cpu.BASE_FLAGS,
            *flags,
            *build_cpu.AVX2,
            *own,
            key,
            "-c",
        )
    return objects


def run_sanitized(binary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a sanitized program to its end."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "OMP_NUM_THREADS": "2"}
    return subprocess.run([str(binary), *arguments], capture_output=True, text=True, env=environment, timeout=300)


def nvrtc_home() -> Path:
    """Return the folder of NVRTC's packages, installing them into the cache where they aren't."""
    done = subprocess.run(["bash", str(ROOT / "scripts" / "nvrtc_env.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
