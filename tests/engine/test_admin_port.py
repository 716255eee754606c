"""The admin port of a real engine: who may use it, what it refuses, where its counters show, and what health means."""

import signal

import httpx
import psutil
import pytest
from engine_process import Engine, Launch, end, spawn, tiny_spec, wait_for

SETTINGS = "/paceline/v1/settings"


def running_settings(engine: Engine) -> dict[str, object]:
    with engine.admin() as admin:
        settings: dict[str, object] = admin.get(SETTINGS).json()["settings"]
    return settings


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer a-wrong-token-of-some-length"}])
def test_wrong_token_is_refused(engine: Engine, header: dict[str, str]) -> None:
    before = running_settings(engine)
    answer = httpx.put(engine.admin_url + SETTINGS, json={"epoch": 9, "revision": 9}, headers=header)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert running_settings(engine) == before


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"pacing": {"mode": "Fixed", "interval": -1}}, 422),
        ({"pacing": {"mode": "Fixed", "interval": 1_000_000_000}}, 422),
        ({"pacing": {"mode": "Fixed", "intervall": 4}}, 422),
        ({"pacing": {"mode": "SLO"}}, 422),
        ({"revision": 0, "pacing": {"mode": "Fixed", "interval": 7}}, 409),
    ],
)
def test_refused_settings_change_nothing(engine: Engine, change: dict[str, object], status: int) -> None:
    before = running_settings(engine)
    with engine.admin() as admin:
        answer = admin.put(SETTINGS, json={"epoch": 0, "revision": 10_000} | change)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]
    assert running_settings(engine) == before


def test_counters_are_in_the_engines_own_metrics(engine: Engine) -> None:
    wait_for(
        lambda: (
            'paceline_engine_steps_total{engine="0",kind="prefill"}' in httpx.get(f"{engine.base_url}/metrics").text
        ),
        60,
        "the monitor's first look at the engine core",
    )


def test_openai_port_has_no_admin_routes(engine: Engine) -> None:
    answer = httpx.get(engine.base_url + SETTINGS, headers={"Authorization": f"Bearer {engine.token}"})
    assert answer.status_code == 404


def test_health_notices_a_core_that_stands_still(engine: Engine) -> None:
    children = psutil.Process(engine.process.pid).children(recursive=True)
    cores = [child for child in children if any("EngineCore" in word for word in child.cmdline())]
    assert len(cores) == 1
    cores[0].send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: httpx.get(f"{engine.admin_url}/healthz").status_code == 503, 300, "healthz says 503")
    finally:
        cores[0].send_signal(signal.SIGCONT)
    wait_for(lambda: httpx.get(f"{engine.admin_url}/healthz").status_code == 200, 300, "healthz says 200 again")


def test_port_in_use_ends_the_start_with_a_reason(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> None:
    taken = int(engine.admin_url.rpartition(":")[2])
    second = spawn(Launch(tmp_path_factory.mktemp("second"), tiny_spec()), admin_port=taken)
    try:
        assert second.process.wait(900) != 0
    finally:
        end(second)
    log = second.log_path.read_text()
    assert f"the admin port 127.0.0.1:{taken} can't be opened: Address already in use" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("PACELINE_SETTINGS_FILE", "the live settings can't be read from PACELINE_SETTINGS_FILE=/nowhere/file"),
        ("PACELINE_ADMIN_TOKEN_FILE", "the admin token can't be read from PACELINE_ADMIN_TOKEN_FILE=/nowhere/file"),
    ],
)
def test_missing_file_ends_the_start_with_a_reason(
    variable: str, message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    launch = Launch(tmp_path_factory.mktemp("broken"), tiny_spec(), env={variable: "/nowhere/file"})
    broken = spawn(launch)
    try:
        assert broken.process.wait(900) != 0
    finally:
        end(broken)
    assert message in broken.log_path.read_text()
