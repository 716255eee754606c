"""The library's build: in a wheel, without a compiler, and when it is older than its sources."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from toolchain import ROOT

from paceline.kernels import build_cpu
from paceline.kernels.loader import LEVEL_VARIABLE, CpuKernels, KernelUnavailableError

LIBRARY_IN_WHEEL = "paceline/kernels/paged_prefill_cpu.so"
USE_INSTALLED = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from batches import Batch, make
from paceline.kernels import build_cpu
from paceline.kernels.ops import paged_prefill
from paceline.kernels.reference import paged_prefill_reference
call = make(Batch(rows=(5,), lengths=(900,), heads=6, kv_heads=1))
paged_prefill(**vars(call))
print(build_cpu.LIBRARY, torch.allclose(call.out, paged_prefill_reference(call), atol=2e-3, rtol=1e-2))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the files that a wheel is built from."""
    copy = tmp_path / "checkout"
    rooms = [path.name for path in (ROOT / "src" / "paceline").iterdir() if path.is_symlink()]
    for name in (*rooms, "src"):
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.part")
        )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build_wheel(checkout: Path, mode: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PACELINE_CPU_KERNELS": mode, "PATH": path}
    environment.pop("CXX", None)
    command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", "dist"]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


def contents(checkout: Path) -> tuple[str, list[str]]:
    (wheel,) = (checkout / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name, archive.namelist()


def wheel_of(checkout: Path) -> tuple[str, list[str]]:
    """Build a checkout's wheel with its library, and return its name and those of its files."""
    done = build_wheel(checkout, "Require")
    assert done.returncode == 0, done.stderr
    return contents(checkout)


def test_a_wheel_has_the_library_and_serves_every_python(checkout: Path) -> None:
    name, files = wheel_of(checkout)
    assert "-py3-none-linux_" in name
    assert LIBRARY_IN_WHEEL in files
    sources = {f"paceline/kernels/cuda/{path.name}" for path in (ROOT / "kernels" / "cuda").iterdir()}
    assert sources == {file for file in files if file.endswith((".cu", ".cuh"))}
    assert not any(file.endswith((".cpp", ".h")) for file in files)


def test_an_installed_wheel_runs_its_own_library(checkout: Path, tmp_path: Path) -> None:
    name, _ = wheel_of(checkout)
    installed = tmp_path / "installed"
    with zipfile.ZipFile(checkout / "dist" / name) as archive:
        archive.extractall(installed)
    folders = [str(installed), str(Path(__file__).parent)]
    done = subprocess.run([sys.executable, "-P", "-c", USE_INSTALLED, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed / LIBRARY_IN_WHEEL), "True"]


def test_a_source_distribution_builds_the_library(checkout: Path, tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", "dist"]
    environment = {**os.environ, "PACELINE_CPU_KERNELS": "Skip"}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (packed,) = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert set(wheel_of(unpacked)[1]) == set(wheel_of(checkout)[1])


def test_without_a_compiler_the_build_says_so_and_leaves_the_library_out(checkout: Path) -> None:
    done = build_wheel(checkout, "Auto", path="")
    assert done.returncode == 0, done.stderr
    assert "built WITHOUT its CPU kernels, engines will serve without the page gate: no C++ compiler" in done.stdout
    name, files = contents(checkout)
    assert name.endswith("-py3-none-any.whl")
    assert LIBRARY_IN_WHEEL not in files


@pytest.mark.parametrize(("mode", "fails"), [("Auto", False), ("Require", True)])
def test_a_compiler_that_refuses_the_sources_is_like_none(
    checkout: Path, tmp_path: Path, mode: str, fails: bool
) -> None:
    old = tmp_path / "bin" / "g++"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho unrecognized option -mamx-tile >&2\nexit 1\n')
    old.chmod(0o755)
    done = build_wheel(checkout, mode, path=f"{old.parent}:/bin")
    assert bool(done.returncode) is fails
    assert "unrecognized option -mamx-tile" in (done.stderr if fails else done.stdout)
    if not fails:
        assert LIBRARY_IN_WHEEL not in contents(checkout)[1]


def test_required_kernels_fail_the_build_without_a_compiler(checkout: Path) -> None:
    done = build_wheel(checkout, "Require", path="")
    assert done.returncode != 0
    assert "PACELINE_CPU_KERNELS=Require, but no C++ compiler found" in done.stderr


def test_a_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KernelUnavailableError, match=r"built without a C\+\+ compiler.*kernels/build_cpu\.py"):
        CpuKernels(tmp_path / "absent.so")


def test_a_library_of_other_sources_is_refused() -> None:
    assert CpuKernels(build_cpu.LIBRARY, build_cpu.build_key())
    with pytest.raises(KernelUnavailableError, match="built from other sources"):
        CpuKernels(build_cpu.LIBRARY, "0123456789abcdef")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(KernelUnavailableError, match="can't be loaded"):
        CpuKernels(tmp_path / "broken.so")


def test_a_variable_names_the_highest_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "portable")
    kernels = CpuKernels(build_cpu.LIBRARY)
    assert kernels.levels(torch.float32) == kernels.levels(torch.bfloat16) == ("portable",)
    monkeypatch.setenv(LEVEL_VARIABLE, "sse")
    with pytest.raises(KernelUnavailableError, match="'sse': it must be one of portable"):
        CpuKernels(build_cpu.LIBRARY)


def test_levels_share_no_function(tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not installed")
    objects = build_cpu.compile_objects(tmp_path, build_cpu.STRICT)
    for level in (path for path in objects if "level_" in path):
        symbols = subprocess.run(["nm", "-C", "--defined-only", level], capture_output=True, text=True).stdout
        weak = [line for line in symbols.splitlines() if line.split()[1] in "WVu"]
        assert weak == [], f"{level} could hand its instructions to other levels"
