"""Launch the CUDA kernel through the driver's C interface: no compiler and no CUDA toolkit at build time."""

import ctypes
import functools
from typing import Final

import torch

from paceline.kernels.arguments import PagedPrefill
from paceline.kernels.loader import KernelUnavailableError
from paceline.kernels.nvrtc import compile_kernel

SHARED_BYTES: Final = {128: 94_336, 64: 56_448, 32: 37_504}
"""Shared memory of a block by its tile of keys: `kSharedBytes` of cuda/layout.cuh. The page has no part in it."""
KERNEL_NAME: Final = b"paceline_paged_prefill"
THREADS: Final = 512
TILE_ROWS: Final = 32
VECTOR_ELEMENTS: Final = 8
_MAX_DYNAMIC_SHARED: Final = 8


def choose_tile(shared_limit: int) -> int:
    """Return the largest tile, in keys, whose shared memory fits a block's limit in bytes.

    Raises `KernelUnavailableError` where not even the smallest fits: at start, not at the first request.
    """
    fitting = [tile for tile, size in SHARED_BYTES.items() if size <= shared_limit]
    if not fitting:
        smallest = min(SHARED_BYTES.values())
        raise KernelUnavailableError(
            f"a block needs {smallest} bytes of shared memory, this device allows {shared_limit}"
        )
    return max(fitting)


class _Arguments(ctypes.Structure):
    """`Arguments` of cuda/layout.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "out", "key", "value")),
        *((name, ctypes.c_void_p) for name in ("block_table", "query_start", "seq_lens")),
        *((name, ctypes.c_int64) for name in ("query_token_stride", "query_head_stride")),
        *((name, ctypes.c_int64) for name in ("out_token_stride", "out_head_stride")),
        *((name, ctypes.c_int64) for name in ("key_block_stride", "key_head_stride", "key_token_stride")),
        *((name, ctypes.c_int64) for name in ("value_block_stride", "value_head_stride", "value_token_stride")),
        ("table_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("group", "page_size")),
        ("scale", ctypes.c_float),
    )


def check_views(call: PagedPrefill) -> None:
    """Refuse views that 16-byte loads can't read. Raises ValueError that names the tensor."""
    tensors = {"query": call.query, "key_cache": call.key_cache, "value_cache": call.value_cache, "out": call.out}
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}'s elements have stride {tensor.stride(-1)}: the CUDA kernel needs 1")
        if any(stride % VECTOR_ELEMENTS for stride in tensor.stride()[:-1]):
            raise ValueError(
                f"{name} has strides {tensor.stride()}: the CUDA kernel needs multiples of {VECTOR_ELEMENTS}"
            )
        if tensor.data_ptr() % (VECTOR_ELEMENTS * tensor.element_size()):
            raise ValueError(f"{name} does not start at a multiple of 16 bytes")


class CudaKernel:
    """A compiled kernel, loaded into the current device's context."""

    def __init__(self, driver: ctypes.CDLL, cubin: bytes, tile: int) -> None:
        self._driver, self._image, self.tile = driver, cubin, tile
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(driver.cuModuleLoadData(ctypes.byref(module), cubin))
        self._check(driver.cuModuleGetFunction(ctypes.byref(self._function), module, KERNEL_NAME))
        self._check(driver.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, SHARED_BYTES[tile]))

    def launch(self, call: PagedPrefill, longest: int, stream: int) -> None:
        """Launch a checked call whose longest sequence has at most `longest` query rows.

        Raises ValueError for a view that the kernel can't read, before anything is launched.
        """
        check_views(call)
        if longest == 0 or call.num_sequences == 0:
            return
        arguments = _Arguments(
            **call.layout(),
            key_token_stride=call.key_cache.stride(2),
            group=call.query.shape[1] // call.key_cache.shape[1],
            page_size=call.page_size,
            scale=call.scale,
        )
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        grid = (-(-longest // TILE_ROWS), call.num_sequences, call.query.shape[1])
        shared = SHARED_BYTES[self.tile]
        self._check(
            self._driver.cuLaunchKernel(
                self._function, *grid, THREADS, 1, 1, shared, ctypes.c_void_p(stream), parameters, None
            )
        )

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise KernelUnavailableError(f"the CUDA driver failed: {(text.value or b'?').decode()} ({status})")


@functools.cache
def cuda_kernel(device: int) -> CudaKernel:
    """Return the kernel compiled for a device, loaded once. Not run anywhere yet: the project had no GPU.

    Raises `KernelUnavailableError`, or NVRTC's errors, where it can't be had.
    """
    properties = torch.cuda.get_device_properties(device)
    tile = choose_tile(properties.shared_memory_per_block_optin)
    cubin = compile_kernel(f"sm_{properties.major}{properties.minor}", tile)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelUnavailableError(f"the CUDA driver can't be loaded: {error}") from error
    with torch.cuda.device(device):
        torch.cuda.init()
        return CudaKernel(driver, cubin, tile)
