"""Experiments from the plan to the stored result, on both databases, with a fake engine in real time."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from api_support.apis import Api
from api_support.fake_engine import FakeEngine
from api_support.plans import all_items, events, follow_until, long_plan, plan, until_end
from api_support.servers import wait_until
from api_support.state import kept, point_at_engine
from sqlalchemy import update

from paceline.bench.records import ExperimentResult, RequestRecord
from paceline.control_api.config import ApiConfig
from paceline.control_api.db.engine import make_engine
from paceline.control_api.db.tables import ExperimentRow
from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings

PACING = "/v1/profiles/lab/tiny/pacing"


@pytest.fixture
def both(start_api: Callable[..., Api], database_url: str) -> Api:
    """A control API on either database."""
    return start_api(database_url)


def submit(api: Api, document: dict, **headers: str) -> str:
    response = api.client.post("/v1/experiments", json=document, headers=headers)
    assert response.status_code == 202, response.text
    assert response.headers["location"] == f"/v1/experiments/{response.json()['id']}"
    return response.json()["id"]


def running(summary: dict) -> bool:
    return summary["progress"] is not None and summary["progress"]["kind"] == "PrefillInjected"


def test_a_run_is_stored_whole_and_the_pacing_is_as_before(both: Api, engine: FakeEngine) -> None:
    both.client.put(PACING, json={"mode": "Fixed", "interval": 7})
    experiment = submit(both, plan(blocks=2, warmUpBlocks=1, controlArm=True, seed=5))
    found = until_end(both.client, experiment)

    assert (found["status"], found["failure"]) == ("Succeeded", None)
    assert found["createdAt"] <= found["startedAt"] <= found["endedAt"]
    assert (found["profile"], found["seed"]) == ("lab/tiny", 5)
    assert found["plan"]["profile"] == "lab/tiny"
    assert found["profileSnapshot"]["spec"]["pacing"]["interval"] == 7
    assert found["engine"]["version"] == "0.32.0"
    assert [arm["name"] for arm in found["arms"]] == ["unpaced", "n4", "unpaced-control"]
    assert found["arms"][1]["pacing"] == {"mode": "Fixed", "interval": 4, "slo": None}
    # One warm-up block of the baseline, then two blocks of each of three arms.
    assert [block["position"] for block in found["blocks"]] == list(range(7))
    assert [block["warmUp"] for block in found["blocks"]] == [True] + [False] * 6
    result = ExperimentResult.model_validate(found["result"])
    assert [arm.arm for arm in result.arms] == ["unpaced", "n4", "unpaced-control"]
    assert result.comparisons
    assert result.audits
    assert found["trustworthy"] is result.trustworthy

    requests = all_items(both.client, f"/v1/experiments/{experiment}/requests", limit=3)
    records = [RequestRecord.model_validate(item["record"]) for item in requests]
    assert len(records) == 14
    assert len({record.request_id for record in records}) == 14
    assert [record.role for record in records].count("Injected") == 7
    for record in records:
        assert len(record.chunks.received_seconds) == len(record.chunks.tokens) > 0
        assert list(record.chunks.received_seconds) == sorted(record.chunks.received_seconds)
        assert sum(record.chunks.tokens) == record.output_tokens

    assert both.client.get(PACING).json()["pacing"] == {"mode": "Fixed", "interval": 7, "slo": None}
    assert engine.settings.pacing == PacingSettings(mode=PacingMode.FIXED, interval=7)
    # Every arm was really live while its blocks ran.
    by_revision = {settings.revision: settings.pacing for settings in engine.pushes}
    for block in found["blocks"]:
        paced = by_revision[block["revision"]].mode is PacingMode.FIXED
        assert paced == (block["arm"] == "n4")


def test_progress_is_told_as_events_up_to_one_last_end(api: Api) -> None:
    experiment = submit(api, plan())
    seen = list(events(api.client, experiment))
    assert [event["event"] for event in seen] == ["progress"] * (len(seen) - 1) + ["end"]
    versions = [int(event["id"]) for event in seen]
    assert versions == sorted(set(versions))
    assert [event["data"]["version"] for event in seen] == versions
    assert seen[-1]["data"]["status"] == "Succeeded"
    kinds = [event["data"]["progress"]["kind"] for event in seen if event["data"]["progress"]]
    assert "PrefillInjected" in kinds
    # Who comes back with the last id gets only what is new, and who comes late gets the end.
    (again,) = events(api.client, experiment, {"Last-Event-ID": str(versions[-1])})
    assert again["event"] == "end"


def test_a_second_experiment_waits_for_the_first(api: Api) -> None:
    first, second = submit(api, plan(name="first")), submit(api, plan(name="second"))
    ended = until_end(api.client, second)
    before = api.client.get(f"/v1/experiments/{first}").json()
    assert before["status"] == ended["status"] == "Succeeded"
    assert before["endedAt"] <= ended["startedAt"]


def test_cancelling_keeps_what_was_measured_and_restores_the_pacing(both: Api, engine: FakeEngine) -> None:
    both.client.put(PACING, json={"mode": "Fixed", "interval": 7})
    experiment = submit(both, long_plan())
    follow_until(both.client, experiment, lambda summary: running(summary) and summary["progress"]["position"] == 2)
    assert both.client.post(f"/v1/experiments/{experiment}/cancel").json()["cancelRequested"] is True
    found = until_end(both.client, experiment)
    assert (found["status"], found["result"], found["trustworthy"]) == ("Cancelled", None, None)
    assert len(found["blocks"]) >= 3
    records = all_items(both.client, f"/v1/experiments/{experiment}/requests")
    assert len(records) == 2 * len(found["blocks"])
    assert records[-1]["record"]["state"] in ("Cancelled", "EndedByPlan", "Finished")
    assert engine.settings.pacing.interval == 7
    again = both.client.post(f"/v1/experiments/{experiment}/cancel")
    assert (again.status_code, again.json()["status"]) == (200, "Cancelled")


def test_a_queued_experiment_is_cancelled_without_running(api: Api) -> None:
    first, second = submit(api, long_plan()), submit(api, plan())
    assert api.client.post(f"/v1/experiments/{second}/cancel").json()["status"] == "Cancelled"
    assert api.client.get(f"/v1/experiments/{second}").json()["startedAt"] is None
    api.client.post(f"/v1/experiments/{first}/cancel")
    assert until_end(api.client, first)["status"] == "Cancelled"


def test_pacing_is_not_changed_by_hand_during_a_run(api: Api) -> None:
    experiment = submit(api, long_plan())
    follow_until(api.client, experiment, running)
    response = api.client.put(PACING, json={})
    assert response.status_code == 409
    document = response.json()
    assert document["type"] == "urn:paceline:problem:experiment-running"
    assert document["experiment"] == experiment
    assert f"/v1/experiments/{experiment}/cancel" in document["detail"]
    api.client.post(f"/v1/experiments/{experiment}/cancel")
    until_end(api.client, experiment)
    assert api.client.put(PACING, json={}).status_code == 200


def test_settings_that_somebody_changed_since_are_left_alone(
    start_api: Callable[..., Api], sqlite_url: str, state: Path, engine: FakeEngine
) -> None:
    api = start_api(sqlite_url)
    api.client.put(PACING, json={"mode": "Fixed", "interval": 7})
    experiment = submit(api, long_plan())
    follow_until(api.client, experiment, running)
    # As a second `paceline up` would: a new epoch, other knobs.
    theirs = LiveSettings(epoch=9, pacing=PacingSettings(mode=PacingMode.FIXED, interval=99))
    (state / "settings.json").write_text(theirs.model_dump_json(by_alias=True))
    api.client.post(f"/v1/experiments/{experiment}/cancel")
    until_end(api.client, experiment)
    assert kept(state).epoch == 9
    assert kept(state).pacing.interval != 7


def test_an_engine_that_dies_in_a_run_fails_it_with_the_reason_and_keeps_the_rows(both: Api, state: Path) -> None:
    experiment = submit(both, long_plan())
    follow_until(both.client, experiment, lambda summary: running(summary) and summary["progress"]["position"] == 1)
    (state / "engine.json").unlink()
    found = until_end(both.client, experiment)
    assert found["status"] == "Failed"
    assert "paceline up" in found["failure"]
    assert len(found["blocks"]) >= 1
    assert len(all_items(both.client, f"/v1/experiments/{experiment}/requests")) == 2 * len(found["blocks"])


def test_nothing_is_queued_while_no_engine_answers(api: Api, state: Path) -> None:
    point_at_engine(state, "http://127.0.0.1:9")
    response = api.client.post("/v1/experiments", json=plan())
    assert response.status_code == 503
    assert response.json()["type"] == "urn:paceline:problem:engine-unavailable"
    assert api.client.get("/v1/experiments").json()["items"] == []


def test_an_engine_that_refuses_an_arm_fails_the_run_and_says_why(api: Api, engine: FakeEngine) -> None:
    engine.refuse = "a step of 64 tokens can't hold one state block of 128 beside 2 residents"
    experiment = submit(api, plan(arms=[{"name": "n4", "pacing": {"mode": "Fixed", "interval": 4}}]))
    found = until_end(api.client, experiment)
    assert found["status"] == "Failed"
    assert engine.refuse in found["failure"]


def test_the_timeline_counts_from_the_injection(api: Api) -> None:
    experiment = submit(api, plan())
    until_end(api.client, experiment)
    blocks = api.client.get(f"/v1/experiments/{experiment}/timeline", params={"binSeconds": 0.02}).json()["blocks"]
    assert {block["arm"] for block in blocks} == {"unpaced", "n4"}
    for block in blocks:
        assert block["startSeconds"] <= 0
        assert block["firstTokenSeconds"] > 0
        assert all(rate >= 0 for rate in block["tokensPerSecond"])
        steps = block["startSeconds"] / block["binSeconds"]
        assert steps == pytest.approx(round(steps))


def test_a_finished_experiment_is_found_again_by_a_new_control_api(
    start_api: Callable[..., Api], database_url: str
) -> None:
    first = start_api(database_url)
    experiment = submit(first, plan())
    found = until_end(first.client, experiment)
    second = start_api(database_url)
    assert second.client.get(f"/v1/experiments/{experiment}").json() == found
    wait_until(lambda: second.client.get("/readyz").status_code == 200, "readiness")


def test_an_experiment_of_another_version_fails_and_the_next_one_runs(
    start_api: Callable[..., Api], database_url: str
) -> None:
    api = start_api(database_url)
    first = submit(api, long_plan())
    follow_until(api.client, first, running)
    unreadable, last = submit(api, plan()), submit(api, plan())
    asyncio.run(_spoil_plan(database_url, unreadable))
    api.client.post(f"/v1/experiments/{first}/cancel")

    ended = follow_until(api.client, unreadable, lambda summary: summary["status"] == "Failed")
    assert "stored by another version" in ended["failure"]
    assert "maxClientLagMilliseconds" in ended["failure"]
    assert until_end(api.client, last)["status"] == "Succeeded"


async def _spoil_plan(database_url: str, experiment: str) -> None:
    """Store a limit that no plan may have: what a newer version with a wider one leaves behind."""
    address = ApiConfig.model_validate({"local_state": ".", "database_url": database_url}).sqlalchemy_url
    engine = make_engine(address)
    spoiled = plan() | {"maxClientLagMilliseconds": 60_001}
    async with engine.begin() as connection:
        await connection.execute(update(ExperimentRow).where(ExperimentRow.id == experiment).values(plan=spoiled))
    await engine.dispose()
