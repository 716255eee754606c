"""The CUDA source compiled for every architecture by the real NVRTC; no GPU is needed and none runs it."""

from pathlib import Path

import pytest
from toolchain import nvrtc_home

from paceline.kernels import nvrtc
from paceline.kernels.cuda import SHARED_BYTES, choose_tile
from paceline.kernels.nvrtc import CompileError, Nvrtc, NvrtcUnavailableError, Resources

SHARED_LIMIT_KIB = {"sm_70": 96, "sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227}
SOURCE = (nvrtc.CUDA_SOURCES / "paged_prefill.cu").read_text()


@pytest.fixture(scope="module")
def compiler() -> Nvrtc:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(nvrtc.HOME_VARIABLE, str(nvrtc_home()))
        return Nvrtc(nvrtc.find_toolchain())


def test_compiles_for_every_architecture_without_spills(compiler: Nvrtc, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"NVRTC {compiler.version}, compiled only (no GPU)",
        "arch     keys  registers  shared bytes  stack  spills",
    ]
    spills = {}
    for architecture, limit in SHARED_LIMIT_KIB.items():
        tile = choose_tile(limit << 10)
        options = (*nvrtc.compile_options(architecture, tile), nvrtc.VERBOSE)
        cubin, log = compiler.compile(SOURCE, "paged_prefill.cu", options)
        assert cubin.startswith(b"\x7fELF")
        used = nvrtc.read_resources(log)
        spills[architecture] = used.spill_store_bytes + used.spill_load_bytes
        lines.append(
            f"{architecture:<8} {tile:>4}  {used.registers:>9}  {SHARED_BYTES[tile]:>12}  {used.stack_bytes:>5}"
            f"  {spills[architecture]:>6}"
        )
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert spills == dict.fromkeys(SHARED_LIMIT_KIB, 0)


def test_an_error_carries_the_compilers_log(compiler: Nvrtc) -> None:
    with pytest.raises(CompileError, match=r'broken.cu \(.*\n.*identifier "nonsense" is undefined'):
        compiler.compile("__global__ void f() { nonsense; }", "broken.cu", ("--gpu-architecture=sm_80",))


def test_a_compiled_kernel_is_taken_from_the_cache(
    compiler: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(nvrtc.CACHE_VARIABLE, str(tmp_path))
    first = nvrtc.compile_kernel("sm_80", 128, compiler)
    (cached,) = (tmp_path / "nvrtc").iterdir()
    cached.write_bytes(b"\x7fELF from the cache")
    assert first.startswith(b"\x7fELF")
    assert nvrtc.compile_kernel("sm_80", 128, compiler) == b"\x7fELF from the cache"
    cached.write_bytes(b"")  # as a full disk leaves it
    assert nvrtc.compile_kernel("sm_80", 128, compiler) == first
    assert nvrtc.compile_kernel("sm_80", 64, compiler).startswith(b"\x7fELF")


def test_another_compiler_or_other_headers_do_not_share_the_cache(
    compiler: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(nvrtc.CACHE_VARIABLE, str(tmp_path))
    nvrtc.compile_kernel("sm_80", 128, compiler)
    monkeypatch.setattr(nvrtc.Toolchain, "identity", lambda _: (("libnvrtc.so.12", 1),))
    nvrtc.compile_kernel("sm_80", 128, compiler)
    assert len(list((tmp_path / "nvrtc").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_told_and_costs_no_kernel(
    compiler: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nvrtc").write_text("a file where the folder should be")
    monkeypatch.setenv(nvrtc.CACHE_VARIABLE, str(tmp_path))
    assert nvrtc.compile_kernel("sm_80", 128, compiler).startswith(b"\x7fELF")
    assert "can't be kept" in caplog.text


def test_a_missing_toolchain_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia" / "cuda_nvrtc" / "lib").mkdir(parents=True)
    monkeypatch.setenv(nvrtc.HOME_VARIABLE, str(tmp_path))
    with pytest.raises(NvrtcUnavailableError, match=r"constraints/nvrtc\.txt"):
        nvrtc.find_toolchain()


def test_resources_are_read_from_the_log() -> None:
    log = "16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\nptxas info    : Used 96 registers, used 1"
    assert nvrtc.read_resources(log) == Resources(96, 16, 8, 4)
    with pytest.raises(ValueError, match="tells no resources"):
        nvrtc.read_resources("nothing")
