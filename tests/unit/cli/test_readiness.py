"""The stages of a start, read from the engine's log."""

from pathlib import Path

from paceline.cli.local.logs import LogTail
from paceline.cli.local.readiness import FIRST_STAGE, Progress

LOG = (
    ("Triton is installed, but doesn't include CPU backend.", FIRST_STAGE),
    ("INFO [api_utils.py:286] non-default args: {'port': 1}", "reading the model's configuration"),
    ("INFO [model.py:2152] Using max model len 4096", "starting the engine's processes"),
    ("INFO [cpu_model_runner.py:68] Starting to load model /m...", "loading the model"),
    ("Loading safetensors checkpoint shards:  50% Completed", "loading the model"),
    ("INFO [default_loader.py:501] Loading weights took 0.02 seconds", "profiling memory"),
    ("INFO [kv_cache_utils.py:2327] GPU KV cache size: 762,600 tokens", "preparing the KV cache"),
    ("Capturing CUDA graphs: 100%", "warming up"),
    ("INFO [model.py:2152] Using max model len 4096", "warming up"),
    ("INFO [entry.py:140] Starting vLLM server on http://127.0.0.1:8911", "opening the API"),
)


def test_stages_follow_the_log_and_never_go_back() -> None:
    progress = Progress()
    for line, stage in LOG:
        progress = progress.after(line)
        assert progress.stage == stage, line


def test_the_tail_returns_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    with LogTail(path) as tail, path.open("ab", buffering=0) as log:
        assert tail.lines() == []
        log.write(b"one\ntw")
        assert tail.lines() == ["one"]
        log.write(b"o\n\xff\n")
        assert tail.lines() == ["two", "\ufffd"]
