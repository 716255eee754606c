"""The control API in a cluster: the custom resource is the truth, and Kubernetes says who may change it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from apilab import ControlApi, token_of, write_status
from oplab import Api, Lab
from oplab.operator import KEY

from paceline.control_api.profiles.ownership import MANAGER
from paceline.operator.kube.resources import PROFILES
from testbed import ApiServer

FIXED = {"mode": "Fixed", "interval": 8}


@pytest.fixture(scope="module")
def control_api(bare_server: ApiServer, admin: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlApi]:
    with ControlApi.running(bare_server, tmp_path_factory.mktemp("control-api"), KEY) as running:
        yield running


@pytest.fixture
def client(control_api: ControlApi, lab: Lab) -> Iterator[httpx.Client]:
    """A client that may read and change the profiles of the lab's namespace."""
    token = token_of(lab.api, lab.space, "editor", ["get", "list", "patch"])
    with control_api.client(token) as http:
        yield http


def pacing_of(lab: Lab, name: str = "web") -> str:
    return f"/v1/profiles/{lab.space}/{name}/pacing"


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    document: dict[str, Any] = response.json()
    assert document["type"] == f"urn:paceline:problem:{kind}"
    return document


def test_a_change_reaches_the_engines_through_the_operator_under_a_manager_of_its_own(
    lab: Lab, client: httpx.Client, control_api: ControlApi
) -> None:
    with lab.operator():
        pods = lab.serve(count=2, engine={"accelerator": "CPU", "replicas": 2})
        answer = client.put(pacing_of(lab), json=FIXED, params={"wait": "30s"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["pacing"] == {**FIXED, "slo": None}
        assert answer.json()["applied"] is True
        assert answer.json()["supersededBy"] is None
        found = [(each["name"], each["revision"], each["applied"]) for each in answer.json()["engines"]]
        assert sorted(found) == sorted((pod.name, 2, True) for pod in pods)
        assert [pod.engine.settings.pacing.interval for pod in pods] == [8, 8]
        assert client.get(pacing_of(lab)).json() == answer.json()
    manifest = lab.api.get(PROFILES, lab.space, "web")
    (ours,) = (entry for entry in manifest["metadata"]["managedFields"] if entry["manager"] == MANAGER)
    assert ours["operation"] == "Apply"
    assert ours["fieldsV1"]["f:spec"] == {"f:pacing": {"f:interval": {}, "f:mode": {}}}
    editor = f"system:serviceaccount:{lab.space}:editor"
    assert manifest["metadata"]["annotations"]["paceline.dev/pacing-set-by"] == editor
    refused = [each for each in lab.server.audit_events(control_api.user) if each["responseStatus"]["code"] == 403]
    assert refused == []


def test_the_profile_is_shown_as_it_stands_with_its_engines(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    write_status(lab.api, lab.space, "web", 3, {"web-0": 3, "web-1": 2})
    shown = client.get(f"/v1/profiles/{lab.space}/web").json()
    assert shown["model"] == "hf://org/name"
    assert "managedFields" not in shown["profile"]["metadata"]
    assert shown["status"]["revision"] == 3
    assert [(each["name"], each["revision"], each["applied"]) for each in shown["status"]["engines"]] == [
        ("web-0", 3, True),
        ("web-1", 2, False),
    ]
    assert client.get("/v1/profiles").json()["items"] == [shown]
    missing = problem(client.get(f"/v1/profiles/{lab.space}/other"), 404, "not-found")
    assert f"{lab.space}/other" in missing["detail"]
    problem(client.put(pacing_of(lab, "other"), json=FIXED), 404, "not-found")


@pytest.mark.parametrize("token", [None, "nonsense", "a.b.c", "deleted"])
def test_a_token_that_is_nobodys_is_refused(lab: Lab, control_api: ControlApi, token: str | None) -> None:
    if token == "deleted":
        token = token_of(lab.api, lab.space, "leaver", ["get", "list", "patch"])
        lab.api.call("DELETE", f"/api/v1/namespaces/{lab.space}/serviceaccounts/leaver")
    lab.profile("web")
    with control_api.client(token) as http:
        for answer in (http.get("/v1/profiles"), http.put(pacing_of(lab), json=FIXED), http.get("/v1/experiments")):
            refusal = problem(answer, 401, "unauthorized")
            assert "kubectl create token" in refusal["detail"]
            assert "Bearer" in answer.headers["www-authenticate"]
        assert http.get("/readyz").status_code == 200
