"""The C++ under the address and undefined-behaviour sanitizers: the CPU levels (AVX512 and AMX emulated, too), and the
CUDA source emulated.
"""

import platform
from pathlib import Path

import pytest
from toolchain import KERNELS, SANITIZERS, compile_cpp, emulated_cpu_objects, run_sanitized

from paceline.kernels import build_cpu

HERE = Path(__file__).parent


def link_cpu_program(folder: Path, objects: list[str]) -> Path:
    program = folder / "sanitized_cpu"
    compile_cpp(HERE / "sanitized_cpu.cpp", program, "-std=c++17", "-O1", "-fopenmp", *SANITIZERS, *objects)
    return program


@pytest.fixture(scope="module")
def cpu_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized")
    return link_cpu_program(folder, build_cpu.compile_objects(folder, ("-O1", *SANITIZERS)))


@pytest.fixture(scope="module")
def emulated_cpu_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized")
    return link_cpu_program(folder, emulated_cpu_objects(folder, "-O1", *SANITIZERS))


@pytest.fixture(scope="module")
def cuda_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sanitized") / "sanitized_cuda"
    flags = ("-std=c++17", "-O1", "-march=native", f"-I{KERNELS / 'emulation'}", "-Wno-unknown-pragmas")
    compile_cpp(HERE / "sanitized_cuda.cpp", program, *flags, *SANITIZERS)
    return program


def test_cpu_levels_stay_within_their_buffers(cpu_program: Path) -> None:
    done = run_sanitized(cpu_program)
    assert done.returncode == 0, done.stderr
    runs = int(done.stdout.split()[0])
    assert runs >= (16 if platform.machine() != "x86_64" else 32)  # portable, and on x86 at least AVX2


def test_emulated_cpu_levels_stay_within_their_buffers(emulated_cpu_program: Path) -> None:
    done = run_sanitized(emulated_cpu_program)
    assert done.returncode == 0, done.stderr
    # Four shapes, each finite and not: portable, AVX2 and AVX512 with two dtypes, AMX with one.
    assert done.stdout == ("56 runs\n" if platform.machine() == "x86_64" else "16 runs\n")


def test_cuda_source_stays_within_its_buffers(cuda_program: Path) -> None:
    done = run_sanitized(cuda_program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "6 runs\n"


@pytest.mark.parametrize("program", ["cpu_program", "cuda_program"])
def test_a_step_outside_is_seen(program: str, request: pytest.FixtureRequest) -> None:
    done = run_sanitized(request.getfixturevalue(program), "overrun")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
