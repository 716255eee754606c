"""`paceline simulate` as a user calls it: the command starts the engine environment's interpreter by itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from engine_process import PYTHON

COMMAND = (sys.executable, "-P", "-c", "from paceline.cli.main import main; main()", "simulate")


def test_the_published_table_by_one_command(tmp_path: Path) -> None:
    kept = tmp_path / "kept.yaml"
    arguments = ("--hardware", "v100x2", "--interval", "0,4", "--stock", "--save-hardware", kept, "--output", "json")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [*COMMAND, *arguments, "--engine-python", PYTHON],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(temporary.iterdir()) == []
    found = json.loads(done.stdout)
    assert found["simulated"] is True
    rates = {each["arm"]: each["metrics"]["residentTokensPerSecondDuring"] for each in found["figures"]}
    assert list(rates) == ["vllm-stock", "n=0", "n=4"]
    assert rates["vllm-stock"] == rates["n=0"]
    assert abs(rates["n=0"] / 4.2 - 1) < 0.1
    assert abs(rates["n=4"] / 11.1 - 1) < 0.1
    assert yaml.safe_load(kept.read_text())["name"] == "v100x2"


def test_work_that_outgrows_the_cache_is_told_without_a_traceback(tmp_path: Path) -> None:
    hardware = {
        "name": "small",
        "description": "one that holds little",
        "source": "made up",
        "stepTime": {"baseMilliseconds": 20, "perPrefillTokenMicroseconds": 100},
        "maxNumBatchedTokens": 512,
        "kvCacheTokens": 1_024,
        "maxNumSeqs": 16,
        "workload": {"residentContextTokens": 450, "promptTokens": 550},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(hardware))
    done = subprocess.run(
        [*COMMAND, "--hardware", path, "--engine-python", PYTHON],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "is the KV cache too small?" in done.stderr
    assert "Traceback" not in done.stderr
