"""Load the compiled CPU kernels and call them through their C interface."""

import ctypes
import functools
import os
from pathlib import Path
from typing import Final

import torch

from paceline.kernels import build_cpu
from paceline.kernels.arguments import PagedPrefill

DTYPES: Final = {torch.float32: 0, torch.bfloat16: 1}
LEVEL_VARIABLE: Final = "PACELINE_KERNEL_LEVEL"
"""Names the highest level to use, `avx2` for instance; without it, the processor decides."""
_FAILURES: Final = {1: "the level does not run on this processor", 2: "no memory for the threads' workspaces"}


class KernelUnavailableError(RuntimeError):
    """A kernel can't be used here; the message says why and what to do."""


class _Call(ctypes.Structure):
    """`Call` of cpu/api.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "out", "key", "value")),
        *((name, ctypes.c_void_p) for name in ("block_table", "query_start", "seq_lens")),
        *((name, ctypes.c_int64) for name in ("query_token_stride", "query_head_stride")),
        *((name, ctypes.c_int64) for name in ("out_token_stride", "out_head_stride")),
        *((name, ctypes.c_int64) for name in ("key_block_stride", "key_head_stride", "key_element_stride")),
        *((name, ctypes.c_int64) for name in ("value_block_stride", "value_head_stride", "value_token_stride")),
        ("table_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("dtype", "num_sequences", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int32) for name in ("page_size", "level")),
        ("scale", ctypes.c_float),
    )


def _source_key() -> str | None:
    """Return the key that a library of the sources beside this file has; None in an installation without sources."""
    return build_cpu.build_key() if build_cpu.SOURCES.is_dir() else None


def _rebuild() -> str:
    """Return what to do about a library that does not fit: an installed package has no sources to build."""
    return "run python kernels/build_cpu.py" if build_cpu.SOURCES.is_dir() else "install paceline again where g++ is"


class CpuKernels:
    """The loaded library. OpenMP symbols resolve to torch's runtime, so threads follow `torch.set_num_threads`."""

    def __init__(self, path: Path = build_cpu.LIBRARY, expected_key: str | None = None) -> None:
        if not path.exists():
            message = (
                f"{path.name} is not there: this package was built without a C++ compiler. "
                f"Install a wheel of paceline that has it, or g++, and then {_rebuild()}"
            )
            raise KernelUnavailableError(message)
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            message = f"{path.name} can't be loaded: {error}"
            raise KernelUnavailableError(message) from error
        for name, kind in (
            ("build_key", ctypes.c_char_p),
            ("level_name", ctypes.c_char_p),
            ("call_bytes", ctypes.c_size_t),
        ):
            getattr(self._library, f"paceline_{name}").restype = kind
        key = self._library.paceline_build_key().decode()
        if expected_key is not None and key != expected_key:
            message = f"{path.name} was built from other sources ({key}, not {expected_key}): {_rebuild()}"
            raise KernelUnavailableError(message)
        if self._library.paceline_call_bytes() != ctypes.sizeof(_Call):
            message = f"{path.name} has another interface than loader.py: {_rebuild()}"
            raise KernelUnavailableError(message)
        self._names = [
            self._library.paceline_level_name(i).decode() for i in range(self._library.paceline_num_levels())
        ]
        highest = os.environ.get(LEVEL_VARIABLE) or self._names[-1]
        if highest not in self._names:
            known = ", ".join(self._names)
            raise KernelUnavailableError(f"{LEVEL_VARIABLE} is {highest!r}: it must be one of {known}")
        self._allowed = self._names[: self._names.index(highest) + 1]

    def levels(self, dtype: torch.dtype) -> tuple[str, ...]:
        """Return the levels that run here for a dtype, the fastest last; empty for other dtypes."""
        code = DTYPES.get(dtype, -1)
        return tuple(name for i, name in enumerate(self._allowed) if self._library.paceline_level_runs(i, code))

    def run(self, call: PagedPrefill, level: str | None = None) -> None:
        """Run a checked call on the fastest level, or on the one named.

        Raises ValueError for a view that the kernel can't read, before anything is launched.
        """
        check_views(call)
        name = level or self.levels(call.query.dtype)[-1]
        arguments = _Call(
            **call.layout(),
            key_element_stride=call.key_cache.stride(3),
            dtype=DTYPES[call.query.dtype],
            num_sequences=call.num_sequences,
            num_heads=call.query.shape[1],
            num_kv_heads=call.key_cache.shape[1],
            page_size=call.page_size,
            level=self._names.index(name) if name in self._names else -1,
            scale=call.scale,
        )
        status = self._library.paceline_paged_prefill(ctypes.byref(arguments))
        if status:
            raise KernelUnavailableError(f"the CPU kernel failed: {_FAILURES.get(status, status)}")


def check_views(call: PagedPrefill) -> None:
    """Refuse views that the CPU kernels can't read. Raises ValueError that names the stride."""
    strides = (
        ("query's elements", call.query.stride(2)),
        ("out's elements", call.out.stride(2)),
        ("key_cache's tokens", call.key_cache.stride(2)),
        ("value_cache's elements", call.value_cache.stride(3)),
    )
    for name, stride in strides:
        if stride != 1:
            raise ValueError(f"{name} have stride {stride}: the CPU kernels need 1")


@functools.cache
def cpu_kernels() -> CpuKernels:
    """Return the library of this installation, loaded once.

    Raises `KernelUnavailableError` where it was not built, does not load, or is older than the sources beside it.
    """
    return CpuKernels(build_cpu.LIBRARY, _source_key())
