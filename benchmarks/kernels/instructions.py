"""What the two sides of the kernel benchmark may use of the processor."""

from enum import StrEnum

import torch


class InstructionSet(StrEnum):
    """All that the processor has, all but AMX, or what a processor with AVX2 has."""

    ALL = "all"
    NO_AMX = "no AMX"
    AVX2 = "AVX2"


def hide_all_but_avx2() -> None:
    """Have vLLM load its AVX2 build and pick kernels as on a processor with AVX2; call it before vLLM is imported."""
    for name in ("avx512", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_fp16"):
        setattr(torch.cpu, f"_is_{name}_supported", lambda: False)
