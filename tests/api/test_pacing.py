"""Pacing of a local run: kept first, then brought to the engine, whatever happens to the engine in between."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from api_support.apis import Api
from api_support.fake_engine import FakeEngine
from api_support.servers import free_port, serve, wait_until
from api_support.state import kept, point_at_engine
from prometheus_client.parser import text_string_to_metric_families

from paceline.engine_ext.settings import CoalescingSettings, LiveSettings, PacingMode, PacingSettings

PACING = "/v1/profiles/lab/tiny/pacing"


def fixed(interval: int) -> dict[str, object]:
    return {"mode": "Fixed", "interval": interval}


def test_a_change_is_answered_once_the_engine_runs_it(api: Api, engine: FakeEngine, state: Path) -> None:
    response = api.client.put(PACING, json=fixed(8))
    assert response.status_code == 200
    assert response.json() == {
        "pacing": {"mode": "Fixed", "interval": 8, "slo": None},
        "revision": 1,
        "applied": True,
        "engines": [
            {
                "name": "engine",
                "revision": 1,
                "applied": True,
                "paced": True,
                "message": None,
                "uncoalesced": None,
                "pageGate": None,
            }
        ],
        "supersededBy": None,
    }
    assert engine.settings == kept(state)
    assert engine.settings.pacing == PacingSettings(mode=PacingMode.FIXED, interval=8)
    assert engine.settings.fence == (0, 1)
    assert api.client.get(PACING).json() == response.json()


def test_the_profile_shows_the_live_pacing_and_the_rest_as_it_was_started(api: Api) -> None:
    api.client.put(PACING, json=fixed(8))
    view = api.client.get("/v1/profiles/lab/tiny").json()
    assert view["profile"]["spec"]["pacing"] == {"mode": "Fixed", "interval": 8, "slo": None}
    assert view["profile"]["spec"]["model"]["maxModelLen"] == 32_768
    assert view["status"]["revision"] == 1
    assert api.client.get("/v1/profiles").json() == {"items": [view], "nextCursor": None}


def test_the_revision_moves_only_when_something_changes(api: Api, engine: FakeEngine) -> None:
    revisions = [api.client.put(PACING, json=fixed(n)).json()["revision"] for n in (8, 8, 4, 4, 8)]
    assert revisions == [1, 1, 2, 2, 3]
    assert engine.settings.revision == 3


def test_a_change_leaves_coalescing_and_the_epoch_alone(
    state: Path, engine: FakeEngine, start_api: Callable[..., Api], sqlite_url: str
) -> None:
    before = LiveSettings(epoch=3, revision=7, coalescing=CoalescingSettings(max_span_tokens=128))
    (state / "settings.json").write_text(before.model_dump_json(by_alias=True))
    assert start_api(sqlite_url).client.put(PACING, json=fixed(2)).json()["revision"] == 8
    assert engine.settings.fence == (3, 8)
    assert engine.settings.coalescing == before.coalescing


def test_if_match_lets_only_one_of_two_editors_through(api: Api, engine: FakeEngine) -> None:
    etag = api.client.get(PACING).headers["etag"]
    first = api.client.put(PACING, json=fixed(8), headers={"If-Match": etag})
    assert first.status_code == 200
    second = api.client.put(PACING, json=fixed(2), headers={"If-Match": etag})
    assert second.status_code == 412
    assert second.json()["type"] == "urn:paceline:problem:precondition-failed"
    assert second.headers["etag"] == first.headers["etag"] != etag
    assert engine.settings.pacing.interval == 8
    for header in ("*", f'"other", {second.headers["etag"]}'):
        assert api.client.put(PACING, json=fixed(8), headers={"If-Match": header}).status_code == 200
    assert api.client.put(PACING, json=fixed(2), headers={"If-Match": "W/" + first.headers["etag"]}).status_code == 412


def test_concurrent_changes_get_a_revision_each_and_the_engine_ends_with_the_last(
    api: Api, engine: FakeEngine, state: Path
) -> None:
    def put(interval: int) -> tuple[int, int]:
        response = api.client.put(PACING, json=fixed(interval), params={"wait": "30s"})
        assert response.status_code == 200, response.text
        return response.json()["revision"], interval

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(put, range(2, 32)))
    assert kept(state).revision == 30
    assert engine.settings == kept(state)
    fences = [settings.fence for settings in engine.pushes]
    assert fences == sorted(fences)
    assert all(1 <= revision <= 30 for revision, _ in answers)


def test_an_engine_that_is_down_gets_the_change_when_it_is_back(
    start_api: Callable[..., Api], sqlite_url: str, state: Path
) -> None:
    port = free_port()
    point_at_engine(state, f"http://127.0.0.1:{port}")
    api = start_api(sqlite_url)
    response = api.client.put(PACING, json=fixed(8), params={"wait": "100ms"})
    assert response.status_code == 202
    (lagging,) = response.json()["engines"]
    assert (lagging["name"], lagging["revision"], lagging["applied"]) == ("engine", None, False)
    assert "does not answer" in lagging["message"]
    assert "kept" in lagging["message"]
    assert kept(state).pacing.interval == 8

    back = FakeEngine()
    with serve(back.app(), port):
        # Nobody asks: the store goes on trying by itself.
        wait_until(lambda: back.settings.pacing.interval == 8, "the change's arrival")
        assert api.client.get(PACING).json()["applied"] is True


def test_without_an_engine_the_change_is_kept_and_the_answer_says_how_to_start_one(api: Api, state: Path) -> None:
    (state / "engine.json").unlink()
    response = api.client.put(PACING, json=fixed(8), params={"wait": "0s"})
    assert response.status_code == 202
    api.client.put(PACING, json=fixed(9), params={"wait": "100ms"})
    assert "paceline up" in api.client.get(PACING).json()["engines"][0]["message"]
    assert kept(state).pacing.interval == 9


def test_an_engine_that_restarted_with_older_settings_is_pushed_again_when_read(api: Api, engine: FakeEngine) -> None:
    api.client.put(PACING, json=fixed(8))
    engine.settings = LiveSettings()
    state = api.client.get(PACING).json()
    assert state["applied"] is False
    assert "revision 0" in state["engines"][0]["message"]
    wait_until(lambda: engine.settings.fence == (0, 1), "the push")
    assert engine.settings.pacing.interval == 8
    assert api.client.get(PACING).json()["applied"] is True


def test_a_restarted_control_api_pushes_what_it_finds_kept(
    start_api: Callable[..., Api], sqlite_url: str, engine: FakeEngine, state: Path
) -> None:
    settings = LiveSettings(revision=5, pacing=PacingSettings(mode=PacingMode.FIXED, interval=6))
    (state / "settings.json").write_text(settings.model_dump_json(by_alias=True))
    assert start_api(sqlite_url).client.get(PACING).json()["applied"] is False
    wait_until(lambda: engine.settings == settings, "the push")


@pytest.mark.parametrize("fence", [(0, 41), (7, 0)])
def test_an_engine_ahead_of_the_kept_settings_is_overtaken(
    api: Api, engine: FakeEngine, state: Path, fence: tuple[int, int]
) -> None:
    engine.settings = LiveSettings(epoch=fence[0], revision=fence[1])
    response = api.client.put(PACING, json=fixed(8))
    assert response.status_code == 200
    assert engine.settings.fence == (fence[0], fence[1] + 1)
    assert engine.settings == kept(state)
    assert engine.settings.pacing.interval == 8


def test_settings_that_the_engine_refuses_are_taken_back(api: Api, engine: FakeEngine, state: Path) -> None:
    api.client.put(PACING, json=fixed(8))
    before = kept(state)
    engine.refuse = "a step of 64 tokens can't hold one state block of 128 beside 2 residents"
    response = api.client.put(PACING, json=fixed(2))
    assert response.status_code == 422
    assert response.json()["type"] == "urn:paceline:problem:engine-refused"
    assert engine.refuse in response.json()["detail"]
    assert kept(state) == before
    engine.refuse = None
    assert api.client.get(PACING).json()["applied"] is True
    assert api.client.put(PACING, json=fixed(2)).json()["revision"] == 2


def test_an_engine_core_that_does_not_answer_leaves_the_change_pending(api: Api, engine: FakeEngine) -> None:
    engine.silent = True
    response = api.client.put(PACING, json=fixed(8), params={"wait": "300ms"})
    assert response.status_code == 202
    assert "engine core 0" in response.json()["engines"][0]["message"]
    engine.silent = False
    wait_until(lambda: engine.settings.pacing.interval == 8, "the retry")


def test_each_core_of_a_data_parallel_engine_is_named(api: Api, engine: FakeEngine) -> None:
    engine.cores = 2
    engines = api.client.put(PACING, json=fixed(8)).json()["engines"]
    assert [core["name"] for core in engines] == ["engine-0", "engine-1"]
    assert all(core["applied"] for core in engines)


def test_an_engine_that_can_not_pace_says_so_beside_its_revision(api: Api, engine: FakeEngine) -> None:
    engine.reasons = ("vLLM 9.9 is not in the tested range",)
    (shown,) = api.client.put(PACING, json=fixed(8)).json()["engines"]
    assert (shown["applied"], shown["paced"]) == (True, False)
    assert shown["message"] == "vLLM 9.9 is not in the tested range"


def test_what_the_page_gate_does_and_leaves_to_the_engine_is_told(api: Api, engine: FakeEngine) -> None:
    engine.page_gate = "AnyPage: pages of 784 tokens, as the model asks for; calls left to the engine: CacheLayout"
    (shown,) = api.client.get(PACING).json()["engines"]
    assert (shown["pageGate"], shown["message"]) == (engine.page_gate, None)


def test_a_wrong_admin_token_is_told_and_never_shown(api: Api, state: Path) -> None:
    (state / "admin-token").write_text("not-the-one")
    response = api.client.put(PACING, json=fixed(8), params={"wait": "300ms"})
    assert response.status_code == 202
    assert "admin token" in response.json()["engines"][0]["message"]
    assert "not-the-one" not in response.text


def test_unreadable_state_is_named_and_nothing_is_overwritten(api: Api, state: Path) -> None:
    (state / "settings.json").write_text('{"pacing": {"mode": "Fixed", "interval": -3}}')
    for response in (api.client.get(PACING), api.client.put(PACING, json=fixed(8))):
        assert response.status_code == 503
        assert "settings.json" in response.json()["detail"]
        assert "pacing.interval" in response.json()["detail"]
    assert json.loads((state / "settings.json").read_text())["pacing"]["interval"] == -3


def test_the_slo_is_changed_as_a_whole(api: Api, engine: FakeEngine) -> None:
    slo = {"timePerOutputTokenMilliseconds": 80, "maxPrefillDelaySeconds": 30, "precedence": "PrefillDelay"}
    response = api.client.put(PACING, json={"mode": "SLO", "slo": slo})
    assert response.json()["pacing"] == {"mode": "SLO", "interval": 4, "slo": slo}
    assert engine.settings.pacing.slo is not None
    assert engine.settings.pacing.slo.time_per_output_token_milliseconds == 80


def test_changes_are_counted_by_their_result(api: Api, engine: FakeEngine) -> None:
    api.client.put(PACING, json=fixed(8))
    api.client.put(PACING, json=fixed(7), headers={"If-Match": '"9.9"'})
    engine.silent = True
    api.client.put(PACING, json=fixed(6), params={"wait": "50ms"})
    samples = {
        sample.labels["result"]: sample.value
        for family in text_string_to_metric_families(api.client.get("/metrics").text)
        for sample in family.samples
        if sample.name == "paceline_api_pacing_changes_total"
    }
    assert samples == {"applied": 1, "refused": 1, "pending": 1}
