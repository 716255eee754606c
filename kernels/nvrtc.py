"""Compile CUDA C++ at run time with NVRTC, and keep the results on disk."""

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CUDA_SOURCES: Final = Path(__file__).resolve().parent / "cuda"
HOME_VARIABLE: Final = "PACELINE_NVRTC_HOME"
"""A folder that holds NVIDIA's Python packages for NVRTC and its headers, where they are not on Python's path."""
CACHE_VARIABLE: Final = "PACELINE_CACHE"
VERBOSE: Final = "--ptxas-options=-v"
PACKAGES: Final = ("cuda_nvrtc", "cuda_runtime", "cuda_nvcc")
HEADERS: Final = ("mma.h", "crt/mma.h")
ELF: Final = b"\x7fELF"

logger = logging.getLogger(__name__)


class NvrtcUnavailableError(RuntimeError):
    """NVRTC or its headers are not installed; the message says what to install."""


class CompileError(RuntimeError):
    """NVRTC refused the source; the message carries the compiler's log."""


@dataclass(frozen=True)
class Toolchain:
    """NVRTC's library and the folders of the headers that the kernels include."""

    library: Path
    includes: tuple[Path, ...]

    def identity(self) -> tuple[tuple[str, int], ...]:
        """Return the names and sizes, in bytes, of the library and of the headers that the kernels include."""
        headers = [folder / header for folder in self.includes for header in HEADERS if (folder / header).exists()]
        return tuple((path.name, path.stat().st_size) for path in (self.library, *headers))


@dataclass(frozen=True)
class Resources:
    """What a thread of a kernel takes: registers, and bytes of memory where registers did not suffice."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def read_resources(log: str) -> Resources:
    """Read a kernel's resources from the log of a `VERBOSE` compilation. Raises ValueError if they aren't there."""
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    used = re.search(r"Used (\d+) registers", log)
    if frame is None or used is None:
        raise ValueError(f"the compiler's log tells no resources:\n{log}")
    stack, stores, loads = map(int, frame.groups())
    return Resources(int(used[1]), stack, stores, loads)


def _package_folders() -> dict[str, Path]:
    """Return the folders of NVIDIA's packages that are there, the variable's home first."""
    homes = [Path(home) / "nvidia"] if (home := os.environ.get(HOME_VARIABLE)) else []
    spec = importlib.util.find_spec("nvidia")
    homes += [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    return {name: home / name for home in reversed(homes) for name in PACKAGES if (home / name).is_dir()}


def find_toolchain() -> Toolchain:
    """Return the toolchain to compile with.

    Raises `NvrtcUnavailableError` where a part is missing.
    """
    folders = _package_folders()
    libraries = sorted(folders.get("cuda_nvrtc", Path("absent")).glob("lib/libnvrtc.so.*"))
    includes = tuple(folder / "include" for folder in folders.values() if (folder / "include").is_dir())
    missing = [header for header in HEADERS if not any((i / header).exists() for i in includes)]
    if not libraries or missing:
        what = "libnvrtc" if not libraries else " and ".join(missing)
        message = (
            f"{what} not found: install the packages of constraints/nvrtc.txt, or name their folder in {HOME_VARIABLE}"
        )
        raise NvrtcUnavailableError(message)
    return Toolchain(libraries[-1], includes)


def compile_options(architecture: str, tile_tokens: int) -> tuple[str, ...]:
    """Return NVRTC's options for an architecture such as `sm_70` and a tile of 128, 64 or 32 keys."""
    return (f"--gpu-architecture={architecture}", "--std=c++17", f"-DPACELINE_TILE_TOKENS={tile_tokens}")


def cache_folder() -> Path:
    """Return where compiled kernels are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    return Path(os.environ.get(CACHE_VARIABLE) or home) / "nvrtc"


class Nvrtc:
    """The NVRTC library of a toolchain."""

    def __init__(self, toolchain: Toolchain) -> None:
        self.toolchain = toolchain
        try:
            self._library = ctypes.CDLL(str(toolchain.library))
        except OSError as error:
            raise NvrtcUnavailableError(f"{toolchain.library.name} can't be loaded: {error}") from error
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @functools.cached_property
    def version(self) -> str:
        """The compiler's version, as `12.9`."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def compile(self, source: str, name: str, options: tuple[str, ...]) -> tuple[bytes, str]:
        """Compile to a cubin, and return it with the compiler's log. Raises `CompileError` with the log."""
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        )
        try:
            includes = tuple(f"--include-path={path}" for path in (CUDA_SOURCES, *self.toolchain.includes))
            words = [option.encode() for option in (*options, *includes)]
            status = self._library.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                reason = self._library.nvrtcGetErrorString(status).decode()
                raise CompileError(f"NVRTC {self.version} could not compile {name} ({reason}):\n{log}")
            return self._read(program, "CUBIN"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status:
            raise CompileError(f"NVRTC failed: {self._library.nvrtcGetErrorString(status).decode()}")


def compile_kernel(architecture: str, tile_tokens: int, nvrtc: Nvrtc | None = None) -> bytes:
    """Return the cubin of `paged_prefill.cu`, from the disk cache or compiled now.

    The cache's key covers the sources, the options, the architecture, and the compiler and headers that are installed.
    """
    nvrtc = nvrtc or Nvrtc(find_toolchain())
    options = compile_options(architecture, tile_tokens)
    digest = hashlib.sha256(repr((options, nvrtc.version, nvrtc.toolchain.identity())).encode())
    for path in sorted(CUDA_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    cached = cache_folder() / f"paged_prefill-{architecture}-{tile_tokens}-{digest.hexdigest()[:16]}.cubin"
    if cached.exists() and (cubin := cached.read_bytes()).startswith(ELF):
        return cubin
    cubin, _ = nvrtc.compile((CUDA_SOURCES / "paged_prefill.cu").read_text(), "paged_prefill.cu", options)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        part = cached.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(cubin)
        part.replace(cached)
    except OSError as error:
        logger.warning("paceline: the compiled kernel can't be kept, and is compiled anew each time: %s", error)
    return cubin
