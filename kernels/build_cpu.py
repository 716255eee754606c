"""Compile the CPU kernels: one object for each level of instruction set, joined into one plain shared library.

Used by setup.py and, for a checkout, run as a script. It needs a C++17 compiler and nothing else; torch and vLLM are
not imported. OpenMP calls are compiled in but not linked, so that they resolve to the runtime that torch has loaded.

examples:
  python kernels/build_cpu.py                     build into the checkout, if the one there is stale
  CXX=g++-12 python kernels/build_cpu.py --output /tmp/paged_prefill_cpu.so
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent / "cpu"
LIBRARY: Final = SOURCES.parent / "paged_prefill_cpu.so"
# maybe-uninitialized is false for the intrinsics of GCC 12: their own headers leave registers undefined on purpose.
BASE_FLAGS: Final = (
    *("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-uninitialized"),
)
STRICT: Final = ("-Werror",)
"""Beyond the flags above, where the project checks its own sources: a user's compiler may warn of more."""
AVX2: Final = ("-mavx2", "-mfma")
AVX512: Final = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
X86_LEVELS: Final = {"avx2": AVX2, "avx512": AVX512, "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16")}


class NoCompilerError(RuntimeError):
    """No C++ compiler was found."""


class CompileError(RuntimeError):
    """The compiler refused a source; the message carries its output."""


def units() -> dict[str, tuple[str, ...]]:
    """Return the source files of this machine's architecture, each with the flags that it alone is compiled with."""
    levels = X86_LEVELS if platform.machine() in {"x86_64", "AMD64"} else {}
    return {"dispatch.cpp": (), "level_portable.cpp": (), **{f"level_{name}.cpp": f for name, f in levels.items()}}


def build_key() -> str:
    """Return the hash of every source, flag and file of the recipe: a library with another key is stale."""
    digest = hashlib.sha256(repr((BASE_FLAGS, units())).encode())
    for path in sorted(SOURCES.glob("*.*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def find_compiler() -> str:
    """Return the C++ compiler: `CXX`, or g++.

    Raises `NoCompilerError` where it is not there. Clang is not tried: it calls an OpenMP runtime of its own, which
    torch has not loaded.
    """
    name = os.environ.get("CXX") or "g++"
    if path := shutil.which(name):
        return path
    message = (
        f"no C++ compiler found (tried {name}, which CXX can name): install one, for instance Debian's package g++"
    )
    raise NoCompilerError(message)


def run(command: list[str]) -> None:
    """Run a compiler, with its output as the error's message when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        raise CompileError(message)


def compile_objects(folder: Path, extra: tuple[str, ...] = ()) -> list[str]:
    """Compile every unit into a folder, with flags beyond the unit's own, and return the objects."""
    compiler, define = find_compiler(), f'-DPACELINE_BUILD_KEY="{build_key()}"'
    objects = []
    for source, flags in units().items():
        objects.append(str(folder / f"{source}.o"))
        run([compiler, *BASE_FLAGS, *extra, *flags, define, "-c", str(SOURCES / source), "-o", objects[-1]])
    return objects


def compile_library(output: Path) -> None:
    """Compile and link the library to `output`, replacing it at once when whole."""
    folder = output.with_suffix(f".{os.getpid()}.objects")
    folder.mkdir(parents=True)
    try:
        linked = folder / output.name
        link = ("-static-libstdc++", "-static-libgcc", "-Wl,-z,noexecstack")
        run([find_compiler(), "-shared", *compile_objects(folder), "-o", str(linked), *link])
        linked.replace(output)
    finally:
        shutil.rmtree(folder)


def cached_library() -> Path:
    """Return the built library for this checkout's sources and compiler, from the cache or compiled into it now."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    compiler = find_compiler()
    identity = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout + compiler.encode()
    made_by = hashlib.sha256(identity).hexdigest()[:8]
    path = Path(os.environ.get("PACELINE_CACHE") or home) / f"cpu-kernels-{build_key()}-{made_by}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        compile_library(path)
    return path


def install(output: Path) -> None:
    """Put the library of this checkout's sources at `output`, replacing what is there at once."""
    part = output.with_suffix(f".{os.getpid()}.part")
    shutil.copyfile(cached_library(), part)
    part.replace(output)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=LIBRARY, help="the library to write (default: in the checkout)")
    arguments = parser.parse_args()
    try:
        install(arguments.output)
    except (NoCompilerError, CompileError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.output} (key {build_key()})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
