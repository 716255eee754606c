"""`paceline up` with the tiny model on a real engine: paced live, measured, stopped, and killed in the middle."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import PYTHON, TEST_ENV, model_folder
from up_process import ENGINE_SECONDS, Place, wait_until

PROFILE = """\
apiVersion: paceline.dev/v1alpha1
kind: InferenceProfile
metadata: {{name: tiny}}
spec:
  model: {{source: "file://{model}", servedName: tiny, maxModelLen: 8192}}
  engine:
    accelerator: CPU
    maxNumBatchedTokens: 512
    maxNumSeqs: 8
    kvCache: {{sizeGibibytes: 1}}
    extraArgs: ["--enforce-eager"]
"""
MEASURED_SECONDS = 1_200.0
"""How long a small experiment may take on a machine that does much else."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    place.env |= TEST_ENV | {"PACELINE_ENGINE_PYTHON": str(PYTHON)}
    place.profile.write_text(PROFILE.format(model=model_folder()))
    yield place
    place.end()


@pytest.mark.timeout(2 * ENGINE_SECONDS + MEASURED_SECONDS)
def test_a_profile_is_run_paced_measured_and_stopped(place: Place) -> None:
    up = place.up()
    up.wait_for("Ctrl-C stops everything.", ENGINE_SECONDS)
    for stage in ("starting Python and vLLM", "loading the model", "preparing the KV cache"):
        assert f"default/tiny: {stage} (" in up.text
    engine_pid = place.run_file()["enginePid"]

    paced = place.paceline("pace", "tiny", "--interval", "4", "--wait", "60s", "-o", "json")
    assert paced.returncode == 0, paced.stderr
    assert (json.loads(paced.stdout)["revision"], json.loads(paced.stdout)["applied"]) == (1, True)
    status = json.loads(place.paceline("status", "tiny", "-o", "json").stdout)
    assert (status["pacing"]["interval"], status["engines"][0]["revision"]) == (4, 1)

    too_long = place.paceline("experiment", "run", "--arm", "off", "--arm", "4", "--prompt-tokens", "9000")
    assert too_long.returncode == 2
    assert "does not fit the engine's maxModelLen 8192" in too_long.stderr

    # Three prefill chunks, so that pacing has something to spread; the numbers themselves are not judged here.
    sizes = ("--residents", "1", "--prompt-tokens", "1536", "--blocks", "1", "--warm-up-blocks", "0")
    run = place.paceline(
        "experiment", "run", "--arm", "off", "--arm", "4", "--no-control-arm", *sizes, seconds=MEASURED_SECONDS
    )
    assert "a prompt of 1536 tokens" in run.stderr
    listed = json.loads(place.paceline("experiment", "list", "-o", "json").stdout)
    assert [(item["status"], item["profile"]) for item in listed] == [("Succeeded", "default/tiny")], run.stderr
    stored = json.loads(place.paceline("report", "--json").stdout)
    assert {arm["arm"]: arm["completedRequests"] for arm in stored["result"]["arms"]} == {"off": 2, "n=4": 2}
    assert place.run_file()["enginePid"] == engine_pid, "no change of pacing restarts the engine"

    os.kill(up.process.pid, signal.SIGINT)
    assert up.wait() == 0
    up.assert_nothing_left()

    plot = place.folder / "rates.svg"
    offline = place.paceline("report", listed[0]["id"], "--plot", str(plot))
    assert offline.stdout == run.stdout
    assert plot.read_text().rstrip().endswith("</svg>")


@pytest.mark.timeout(ENGINE_SECONDS + 600)
def test_an_engine_killed_while_it_runs_is_told_and_nothing_is_left(place: Place) -> None:
    up = place.up()
    up.wait_for("Ctrl-C stops everything.", ENGINE_SECONDS)
    workers = [each for each in up.seen.values() if "VLLM::" in " ".join(each.cmdline())]
    assert workers, "the engine has processes of its own"
    os.kill(place.run_file()["enginePid"], signal.SIGKILL)
    assert up.wait() == 1
    assert "error: the engine ended while running: killed by SIGKILL" in up.text
    up.assert_nothing_left()


@pytest.mark.timeout(ENGINE_SECONDS + 600)
def test_an_argument_that_vllm_does_not_know_is_told(place: Place) -> None:
    place.profile.write_text(place.profile.read_text().replace('"--enforce-eager"', '"--no-such-argument"'))
    up = place.up()
    wait_until(lambda: up.process.poll() is not None, lambda: up.text, ENGINE_SECONDS)
    assert up.wait() == 1
    assert "vLLM does not take the argument: --no-such-argument" in up.text
    assert "extraArgs" in up.text
