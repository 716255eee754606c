"""`paceline up` as a process with the real control API, and a scripted engine that shows faults on demand."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from up_process import Place, alive, wait_until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()


def test_ctrl_c_stops_everything_and_a_new_start_works(place: Place) -> None:
    for _ in range(2):
        up = place.up()
        up.wait_for("Ctrl-C stops everything.")
        up.process.send_signal(signal.SIGINT)
        assert up.wait() == 0, up.text
        assert up.lines[-1] == "stopped"
        up.assert_nothing_left()
    assert place.paceline("status", "tiny", "--output", "json").stdout.count('"stopped"') == 1


def test_a_run_is_seen_paced_and_stopped_from_outside(place: Place) -> None:
    up = place.up("--output", "json")
    up.wait_for('"readyAfterSeconds"')
    status = json.loads(place.paceline("status", "tiny", "-o", "json").stdout)
    assert (status["phase"], status["pacing"]["interval"], status["applied"]) == ("running", 2, True)

    changed = place.paceline("pace", "tiny", "--interval", "8")
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout.startswith("default/tiny: Fixed, interval 8 (revision 1, applied after ")
    assert place.paceline("pace", "tiny").stdout == "default/tiny: Fixed, interval 8 (revision 1)\n"

    refused = place.paceline("pace", "tiny", "--mode", "SLO")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "mode SLO needs the field slo" in refused.stderr

    second = place.up()
    assert second.wait() == 3
    assert f"default/tiny is already running: process {up.process.pid}, OpenAI API http://127.0.0.1:" in second.text
    assert "paceline down default/tiny" in second.text

    down = place.paceline("down", "tiny")
    assert (down.returncode, up.wait()) == (0, 0)
    up.assert_nothing_left()
    assert "default/tiny is not running" in place.paceline("down", "tiny").stderr
    assert place.paceline("pace", "tiny", "--interval", "4").returncode == 4

    again = place.up()
    again.wait_for("Ctrl-C stops everything.")
    assert (
        "starting with the profile's pacing, Fixed, interval 2; the last run ended with Fixed, interval 8" in again.text
    )
    settings = json.loads((place.state / "default" / "tiny" / "settings.json").read_text())
    assert (settings["epoch"], settings["revision"], settings["pacing"]["interval"]) == (1, 2, 2)


def test_kill_9_of_up_leaves_no_orphan_and_no_stale_lock(place: Place) -> None:
    up = place.up(FAKE_ENGINE="stubborn")
    up.wait_for("Ctrl-C stops everything.")
    assert any("straggler" in " ".join(each.cmdline()) for each in up.seen.values())
    up.process.kill()
    stopping = place.paceline("status", "tiny", "-o", "json")
    assert json.loads(stopping.stdout)["phase"] == "stopping"
    up.assert_nothing_left()
    wait_until(lambda: '"stopped"' in place.paceline("status", "tiny", "-o", "json").stdout)
    again = place.up()
    again.wait_for("Ctrl-C stops everything.")


def test_a_second_ctrl_c_stops_at_once(place: Place) -> None:
    up = place.up("--stop-grace", "3600", FAKE_ENGINE="stubborn")
    up.wait_for("Ctrl-C stops everything.")
    api = psutil.Process(place.run_file()["apiPid"])
    up.process.send_signal(signal.SIGINT)
    wait_until(lambda: not alive(api))
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130
    assert "stopping at once" in up.text
    up.assert_nothing_left()


def test_ctrl_c_during_a_start_that_hangs(place: Place) -> None:
    up = place.up(FAKE_ENGINE="hang")
    up.wait_for("opening the API")
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 0
    up.assert_nothing_left()


def test_a_start_that_takes_too_long_is_given_up(place: Place) -> None:
    up = place.up("--start-timeout", "1", FAKE_ENGINE="hang")
    assert up.wait() == 1
    assert "the engine's OpenAI API, the engine's admin port" in up.text
    assert "did not answer within 1 s" in up.text
    assert "--start-timeout" in up.text


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("OSError: [Errno 98] Address already in use", "a port that it wanted is in use"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "it ran out of memory"),
        ("api_server.py: error: unrecognized arguments: --nope", "vLLM does not take the argument: --nope"),
    ],
)
def test_a_crash_at_start_is_explained(place: Place, log: str, reason: str) -> None:
    up = place.up(FAKE_ENGINE="crash", FAKE_ENGINE_LOG=log)
    assert up.wait() == 1
    assert f"error: the engine ended before it was ready with status 1: {reason}" in up.text
    assert f"  | {log}" in up.text
    assert "Traceback" not in up.text
    assert not (place.state / "default" / "tiny" / "run.json").exists()


def test_a_crash_while_running_stops_the_rest(place: Place) -> None:
    up = place.up(FAKE_ENGINE_LOG="RuntimeError: the cosmic ray hit")
    up.wait_for("Ctrl-C stops everything.")
    os.kill(place.run_file()["enginePid"], signal.SIGUSR1)
    assert up.wait() == 1
    assert "error: the engine ended while running with status 1" in up.text
    assert "  | RuntimeError: the cosmic ray hit" in up.text
    up.assert_nothing_left()


def test_a_control_api_that_dies_is_started_again_while_the_engine_serves(place: Place) -> None:
    up = place.up()
    up.wait_for("Ctrl-C stops everything.")
    before = place.run_file()
    os.kill(before["apiPid"], signal.SIGKILL)
    up.wait_for("the control API ended while running: killed by SIGKILL; starting it again")
    wait_until(lambda: place.run_file()["apiPid"] != before["apiPid"])
    assert place.run_file()["enginePid"] == before["enginePid"]
    wait_until(lambda: place.paceline("pace", "tiny", "--interval", "3").returncode == 0, lambda: up.text)


def test_a_port_in_use_names_its_holder(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = place.up("--port", str(port), "--admin-port", "0", "--api-port", "0", ports=False)
        assert up.wait() == 3
    assert f"the engine's OpenAI API can't listen on 127.0.0.1:{port}: Address already in use" in up.text
    assert f"process {os.getpid()}" in up.text
    assert "--port" in up.text


def test_machines_that_are_not_fit(place: Place) -> None:
    no_vllm = place.up("--engine-python", sys.executable)
    assert no_vllm.wait() == 2
    assert "has no vllm" in no_vllm.text
    assert "make engine-env" in no_vllm.text

    no_python = place.up("--engine-python", "/nowhere/python")
    assert no_python.wait() == 2
    assert "can't be run: No such file or directory" in no_python.text

    (place.model / "config.json").unlink()
    no_model = place.up()
    assert no_model.wait() == 2
    assert "holds no config.json" in no_model.text


def test_a_database_that_cannot_be_written_stops_the_start(place: Place) -> None:
    (place.state / "paceline.sqlite3").mkdir(parents=True)
    up = place.up()
    assert up.wait() == 1
    assert "the control API ended before it was ready" in up.text
    assert "its database file cannot be written" in up.text
