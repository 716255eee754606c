"""What the two sides of the kernel benchmark may use of the processor."""

from enum import StrEnum
from pathlib import Path
from typing import Final

import torch

LIMIT_VARIABLE: Final = "PACELINE_BENCHMARK_INSTRUCTIONS"
_AMX: Final = ("amx_tile", "amx_fp16")
_AVX512: Final = ("avx512", "avx512_bf16", "avx512_vnni")


class InstructionSet(StrEnum):
    """All that the processor has, all but AMX, or what a processor with AVX2 has."""

    ALL = "all"
    NO_AMX = "no-amx"
    AVX2 = "avx2"


def limit_torch(instructions: InstructionSet) -> None:
    """Have vLLM load the build and pick the kernels of a lesser processor; call it before vLLM is imported."""
    hidden: dict[InstructionSet, tuple[str, ...]] = {
        InstructionSet.ALL: (),
        InstructionSet.NO_AMX: _AMX,
        InstructionSet.AVX2: (*_AMX, *_AVX512),
    }
    for name in hidden[instructions]:
        setattr(torch.cpu, f"_is_{name}_supported", lambda: False)


def engine_environment(instructions: InstructionSet) -> dict[str, str]:
    """Return the variables that limit both sides' kernels, and oneDNN's, in an engine."""
    if instructions is InstructionSet.ALL:
        return {}
    ours, onednn = {
        InstructionSet.NO_AMX: ("avx512", "AVX512_CORE_BF16"),
        InstructionSet.AVX2: ("avx2", "AVX2"),
    }[instructions]
    return {
        "PYTHONPATH": str(Path(__file__).with_name("limited")),
        LIMIT_VARIABLE: instructions,
        "PACELINE_KERNEL_LEVEL": ours,
        "ONEDNN_MAX_CPU_ISA": onednn,
    }
