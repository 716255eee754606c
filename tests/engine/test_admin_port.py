"""The admin port of a real engine: who may use it, what it refuses, and where its counters show."""

import httpx
import pytest
from engine_process import Engine, wait_for

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
