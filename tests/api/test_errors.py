"""Every error is a problem document that says what to do, and costs nothing."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api_support.apis import Api, local_run, running_api
from api_support.fake_engine import FakeEngine
from api_support.state import API_TOKEN

from paceline.bench.plan import ExperimentPlan
from paceline.control_api.schemas.experiments import PLAN_EXAMPLES
from paceline.control_api.schemas.profiles import COALESCING_EXAMPLES, PACING_EXAMPLES
from paceline.engine_ext.settings import CoalescingSettings, PacingSettings


# One API for all tests here: every one of them shows that nothing was changed.
@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def state(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with local_run(engine, tmp_path_factory.mktemp("run")) as folder:
        yield folder


@pytest.fixture(scope="module")
def api(state: Path) -> Iterator[Api]:
    with running_api(state, f"sqlite:///{state / 'paceline.db'}") as running:
        yield running


PACING = "/v1/profiles/lab/tiny/pacing"
PLAN = PLAN_EXAMPLES["pacing"]["value"]


def problem(response: httpx.Response, status: int, kind: str) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert document["type"] == f"urn:paceline:problem:{kind}"
    assert document["title"]
    assert document["detail"]
    assert document["instance"] == f"urn:paceline:request:{response.headers['x-request-id']}"
    return document


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic YTpi", "api-secret", "Bearer api-secret2"])
@pytest.mark.parametrize("path", ["/v1/profiles", PACING, "/v1/experiments", "/v1/experiments/x/events"])
def test_a_request_without_the_right_token_is_refused(api: Api, path: str, header: str | None) -> None:
    headers = {"Authorization": header} if header else {}
    response = httpx.get(api.url + path, headers=headers, trust_env=False)
    document = problem(response, 401, "unauthorized")
    assert "Bearer" in response.headers["www-authenticate"]
    assert "paceline up" in document["detail"]


def test_the_token_file_may_be_replaced_while_running(api: Api, state: Path) -> None:
    (state / "api-token").write_text("another one")
    problem(api.client.get("/v1/profiles"), 401, "unauthorized")
    fresh = {"Authorization": "Bearer another one"}
    assert httpx.get(f"{api.url}/v1/profiles", headers=fresh, trust_env=False).status_code == 200
    (state / "api-token").write_text(API_TOKEN)
    assert api.client.get("/v1/profiles").status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/", "/web/main.js", "/openapi.json"])
def test_probes_metrics_and_the_page_need_no_token(api: Api, path: str) -> None:
    assert httpx.get(api.url + path, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"mode": "Fixed", "interval": -1}, ["interval"]),
        ({"mode": "Fixed", "interval": 1_000_000_000}, ["interval"]),
        ({"mode": "Fixed", "interval": 4.5}, ["interval"]),
        ({"mode": "Fixed", "interval": True}, ["interval"]),
        ({"mode": "Fixed", "interval": "4"}, ["interval"]),
        ({"mode": "Fast"}, ["mode"]),
        ({"interval": 4, "intervall": 5, "n": 1}, ["intervall", "n"]),
        ({"mode": "SLO", "slo": {"timePerOutputTokenMilliseconds": 0}}, ["slo.timePerOutputTokenMilliseconds"]),
        ({"mode": "SLO", "slo": {}}, ["slo.timePerOutputTokenMilliseconds"]),
        ({"mode": "SLO"}, ["body"]),
        ({"interval": 4}, ["body"]),
        ([], ["body"]),
    ],
)
def test_invalid_pacing_names_every_field_and_changes_nothing(api: Api, engine, body: object, fields: list) -> None:
    before = api.client.get(PACING)
    document = problem(api.client.put(PACING, json=body), 422, "validation")
    assert [error["field"] for error in document["errors"]] == fields
    assert all(error["message"] for error in document["errors"])
    after = api.client.get(PACING)
    assert (after.json(), after.headers["etag"]) == (before.json(), before.headers["etag"])
    assert engine.pushes == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"blocks": 0}, "blocks"),
        ({"arms": []}, "arms"),
        ({"arms": [{"name": "a", "pacing": {"interval": -1}}]}, "arms[0].pacing.interval"),
        ({"arms": [{"name": "a", "pacing": {"interval": 4}}]}, "arms[0].pacing"),
        ({"colour": "red"}, "colour"),
        ({"profile": "lab/other"}, "profile"),
    ],
)
def test_an_invalid_plan_names_the_field_and_makes_nothing(api: Api, change: dict, field: str) -> None:
    document = problem(api.client.post("/v1/experiments", json={**PLAN, **change}), 422, "validation")
    assert field in [error["field"] for error in document["errors"]]
    assert api.client.get("/v1/experiments").json() == {"items": [], "nextCursor": None}


def test_a_prompt_that_the_engine_can_not_hold_is_refused_with_the_number_to_use(api: Api) -> None:
    plan = {**PLAN, "workload": {"injectedPromptTokens": 40_000, "injectedOutputTokens": 8}}
    document = problem(api.client.post("/v1/experiments", json=plan), 422, "plan-does-not-fit")
    # The profile says maxModelLen 32768, of which 8 are for the output.
    assert "32760" in document["detail"]


def test_json_that_is_broken_or_not_declared_is_told_apart(api: Api) -> None:
    json_type = {"Content-Type": "application/json"}
    problem(api.client.put(PACING, content='{"mode":', headers=json_type), 400, "invalid-json")
    problem(api.client.put(PACING, content="mode=Fixed"), 415, "not-json")


def test_a_body_over_the_limit_is_refused_declared_or_not(api: Api) -> None:
    large = b"x" * 1_048_577
    problem(api.client.put(PACING, content=large), 413, "body-too-large")
    in_pieces = iter([large[:600_000], large[600_000:]])
    problem(api.client.put(PACING, content=in_pieces), 413, "body-too-large")


def test_what_is_not_there_says_where_to_look(api: Api) -> None:
    problem(api.client.get("/v1/nothing"), 404, "not-found")
    for path in ("/v1/profiles/lab/other", "/v1/profiles/lab/other/pacing", "/v1/profiles/other/tiny"):
        assert "/v1/profiles" in problem(api.client.get(path), 404, "not-found")["detail"]
    for path in ("", "/requests", "/timeline", "/events"):
        problem(api.client.get(f"/v1/experiments/none{path}"), 404, "not-found")
    problem(api.client.post("/v1/experiments/none/cancel"), 404, "not-found")
    problem(api.client.put("/v1/profiles/lab/other/pacing", json={}), 404, "not-found")
    response = api.client.delete(PACING)
    problem(response, 405, "method-not-allowed")
    assert set(response.headers["allow"].replace(" ", "").split(",")) <= {"GET", "PUT", "HEAD"}


@pytest.mark.parametrize("wait", ["-1s", "61s", "2m", "5 s", "5", "soon", "", "1e3s"])
def test_a_wait_is_a_duration_of_at_most_a_minute(api: Api, wait: str) -> None:
    response = api.client.put(PACING, params={"wait": wait}, json={})
    if wait == "5":
        assert response.status_code == 200
    else:
        assert problem(response, 422, "validation")["errors"][0]["field"] == "query.wait"


@pytest.mark.parametrize("cursor", ["x", "bm90IGpzb24", "WyJhIl0", "WzEsMl0", "e30", "Ly8vLw=="])
@pytest.mark.parametrize("path", ["/v1/experiments", "/v1/experiments/none/requests"])
def test_a_cursor_of_another_list_is_refused(api: Api, path: str, cursor: str) -> None:
    response = api.client.get(path, params={"cursor": cursor})
    assert response.status_code in (400, 404)
    if path == "/v1/experiments":
        problem(response, 400, "invalid-cursor")


def test_the_description_names_problems_and_its_examples_are_valid(api: Api) -> None:
    document = api.client.get("/openapi.json").json()
    assert set(document["components"]["schemas"]["Problem"]["properties"]) >= {"type", "title", "status", "detail"}
    operations = [
        operation for path, item in document["paths"].items() if path.startswith("/v1/") for operation in item.values()
    ]
    assert len(operations) == 13
    assert all("application/problem+json" in operation["responses"]["401"]["content"] for operation in operations)
    for example in PACING_EXAMPLES.values():
        PacingSettings.model_validate(example["value"])
    for example in COALESCING_EXAMPLES.values():
        CoalescingSettings.model_validate(example["value"])
    for example in PLAN_EXAMPLES.values():
        ExperimentPlan.model_validate(example["value"])
