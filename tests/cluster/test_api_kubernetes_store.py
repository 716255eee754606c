"""The control API in a cluster: the custom resource is the truth, and Kubernetes says who may change it."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from apilab import FIXED, NOW, ControlApi, live, plan_for, problem, token_of, write_status
from oplab import Lab, profile_manifest

from paceline.control_api.profiles.ownership import MANAGER
from paceline.operator.kube.resources import PROFILES


def test_a_change_reaches_the_engines_through_the_operator_under_a_manager_of_its_own(
    lab: Lab, client: httpx.Client, control_api: ControlApi
) -> None:
    with lab.operator():
        pods = lab.serve(count=2, engine={"accelerator": "CPU", "replicas": 2})
        answer = client.put(live(lab), json=FIXED, params={"wait": "30s"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["pacing"] == {**FIXED, "slo": None}
        assert answer.json()["applied"] is True
        assert answer.json()["supersededBy"] is None
        found = [(each["name"], each["revision"], each["applied"]) for each in answer.json()["engines"]]
        assert sorted(found) == sorted((pod.name, 2, True) for pod in pods)
        assert [pod.engine.settings.pacing.interval for pod in pods] == [8, 8]
        assert client.get(live(lab)).json() == answer.json()
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
    problem(client.put(live(lab, name="other"), json=FIXED), 404, "not-found")


@pytest.mark.parametrize("token", [None, "nonsense", "a.b.c", "deleted"])
def test_a_token_that_is_nobodys_is_refused(lab: Lab, control_api: ControlApi, token: str | None) -> None:
    if token == "deleted":
        token = token_of(lab.api, lab.space, "leaver", ["get", "list", "patch"])
        lab.api.call("DELETE", f"/api/v1/namespaces/{lab.space}/serviceaccounts/leaver")
    lab.profile("web")
    with control_api.client(token) as http:
        for answer in (http.get("/v1/profiles"), http.put(live(lab), json=FIXED), http.get("/v1/experiments")):
            refusal = problem(answer, 401, "unauthorized")
            assert "kubectl create token" in refusal["detail"]
            assert "Bearer" in answer.headers["www-authenticate"]
        assert http.get("/readyz").status_code == 200


def test_kubernetes_says_who_may_read_and_who_may_change(lab: Lab, control_api: ControlApi) -> None:
    lab.profile("web")
    before = lab.api.get(PROFILES, lab.space, "web")
    with control_api.client(token_of(lab.api, lab.space, "reader", ["get"])) as http:
        assert http.get(live(lab)).status_code == 200
        refusal = problem(http.put(live(lab), json=FIXED), 403, "forbidden")
        assert f'"system:serviceaccount:{lab.space}:reader" may not patch' in refusal["detail"]
        assert (refusal["verb"], refusal["resource"]) == ("patch", "inferenceprofiles.paceline.dev")
        assert (refusal["namespace"], refusal["name"]) == (lab.space, "web")
        measured = problem(http.post("/v1/experiments", json=plan_for(lab)), 403, "forbidden")
        assert measured["verb"] == "patch"
        # Nobody learns by it whether a profile exists.
        assert problem(http.put(live(lab, name="other"), json=FIXED), 403, "forbidden")["name"] == "other"
        assert problem(http.get("/v1/profiles"), 403, "forbidden")["verb"] == "list"
    with control_api.client(token_of(lab.api, lab.space, "nobody")) as http:
        assert problem(http.get(live(lab)), 403, "forbidden")["verb"] == "get"
        assert problem(http.get(f"/v1/profiles/{lab.space}/web"), 403, "forbidden")["verb"] == "get"
    assert lab.api.get(PROFILES, lab.space, "web") == before


def test_a_list_holds_the_profiles_of_the_callers_namespaces(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    lab.api.create(profile_manifest("default", f"of-{lab.space}", {"model": {"source": "hf://org/name"}}))
    assert [item["namespace"] for item in client.get("/v1/profiles").json()["items"]] == [lab.space]


def test_what_is_granted_later_counts_within_seconds(lab: Lab, control_api: ControlApi) -> None:
    lab.profile("web")
    with control_api.client(token_of(lab.api, lab.space, "later")) as http:
        problem(http.get(live(lab)), 403, "forbidden")
        lab.server.kubectl(
            "create", "rolebinding", "view", "--clusterrole=cluster-admin", f"--serviceaccount={lab.space}:later",
            f"--namespace={lab.space}",
        )  # fmt: skip
        lab.wait(lambda: http.get(live(lab)).status_code == 200, "the grant counts")


def test_a_change_that_engines_lag_behind_is_pending_and_names_them(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    write_status(lab.api, lab.space, "web", 1, {"web-0": 1, "web-1": 1})
    unseen = client.put(live(lab), json=FIXED, params=NOW)
    assert unseen.status_code == 202, unseen.text
    assert unseen.json()["applied"] is False
    assert all("operator has not acted" in each["message"] for each in unseen.json()["engines"])
    write_status(lab.api, lab.space, "web", 2, {"web-0": 2, "web-1": 1})
    lagging = client.put(live(lab), json=FIXED, params={"wait": "200ms"})
    assert lagging.status_code == 202
    assert lagging.json()["revision"] == 2
    assert [(each["name"], each["applied"]) for each in lagging.json()["engines"]] == [
        ("web-0", True),
        ("web-1", False),
    ]
    with ThreadPoolExecutor(1) as pool:
        change = {"mode": "Fixed", "interval": 16}
        waiting = pool.submit(client.put, live(lab), json=change, params={"wait": "30s"})
        lab.wait(lambda: lab.api.get(PROFILES, lab.space, "web")["spec"]["pacing"] == change, "the change is kept")
        write_status(lab.api, lab.space, "web", 3, {"web-0": 3, "web-1": 2})
        write_status(lab.api, lab.space, "web", 3, {"web-0": 3, "web-1": 3})
        assert waiting.result().status_code == 200, waiting.result().text
        assert waiting.result().json()["revision"] == 3


def test_a_profile_without_engines_is_not_waited_for(lab: Lab, client: httpx.Client) -> None:
    with lab.operator():
        lab.profile("web", engine={"accelerator": "CPU", "replicas": 0})
        lab.wait_condition("Ready", "False", reason="ScaledToZero")
        # The client would give up before the wait is over.
        answer = client.put(live(lab), json=FIXED, params={"wait": "60s"}, timeout=30)
    assert answer.status_code == 202
    assert answer.json()["engines"] == []


def test_if_match_lets_one_of_two_editors_through_whatever_else_changes(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    etag = client.get(live(lab)).headers["etag"]
    # A status and a cold field are no change of the pacing.
    write_status(lab.api, lab.space, "web", 1, {"web-0": 1})
    lab.change("web", {"engine": {"replicas": 2}})
    first = client.put(live(lab), json=FIXED, headers={"If-Match": etag}, params=NOW)
    assert first.status_code == 202, first.text
    second = client.put(live(lab), json={**FIXED, "interval": 2}, headers={"If-Match": etag}, params=NOW)
    problem(second, 412, "precondition-failed")
    assert second.headers["etag"] == first.headers["etag"] != etag
    assert lab.api.get(PROFILES, lab.space, "web")["spec"]["pacing"] == FIXED


def test_concurrent_changes_are_all_kept_one_after_another(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    before = lab.api.get(PROFILES, lab.space, "web")["metadata"]["generation"]
    with ThreadPoolExecutor(4) as pool:
        changes = [{"mode": "Fixed", "interval": interval} for interval in range(10, 18)]
        answers = list(pool.map(lambda change: client.put(live(lab), json=change, params=NOW), changes))
    assert [answer.status_code for answer in answers] == [202] * 8
    manifest = lab.api.get(PROFILES, lab.space, "web")
    assert manifest["metadata"]["generation"] == before + 8
    assert manifest["spec"]["pacing"] in changes


def test_settings_that_an_engine_refuses_are_taken_back(lab: Lab, client: httpx.Client) -> None:
    with lab.operator():
        (pod,) = lab.serve(pacing={"mode": "Fixed", "interval": 8})
        pod.engine.smallest_interval = 4
        refused = client.put(live(lab), json={**FIXED, "interval": 2}, params={"wait": "30s"})
        assert "interval is too small" in problem(refused, 422, "engine-refused")["detail"]
        lab.wait_condition("ConfigApplied", "True")
        assert pod.engine.settings.pacing.interval == 8
    assert lab.api.get(PROFILES, lab.space, "web")["spec"]["pacing"] == FIXED


def test_settings_that_are_invalid_are_refused_by_their_field(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    ours = problem(client.put(live(lab), json={**FIXED, "interval": 5_000}), 422, "validation")
    assert ours["errors"][0]["field"] == "interval"
    # What only the cluster's own definition refuses.
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceprofiles.paceline.dev"

    def set_maximum(value: int) -> None:
        definition = lab.api.call("GET", crd)
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        schema["pacing"]["properties"]["interval"]["maximum"] = value
        lab.api.call("PUT", crd, definition)

    # Another value each time: one that is there already stays valid.
    intervals = itertools.count(600)

    def put() -> httpx.Response:
        return client.put(live(lab), json={**FIXED, "interval": next(intervals)}, params=NOW)

    set_maximum(512)
    try:
        lab.wait(lambda: put().status_code == 422, "the narrower definition is served")
        refusal = problem(put(), 422, "validation")
        (error,) = refusal["errors"]
        assert error["field"] == "interval"
        assert "512" in error["message"]
    finally:
        set_maximum(1024)
    lab.wait(lambda: put().status_code == 202, "the definition is back")


def test_an_api_server_that_is_away_is_told_and_waited_for(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    assert client.get(live(lab)).status_code == 200
    with lab.server.away():
        answer = client.put(live(lab), json=FIXED)
        problem(answer, 503, "api-server-unavailable")
        assert answer.headers["retry-after"] == "5"
        problem(client.get("/v1/profiles"), 503, "api-server-unavailable")
        # Its own probes don't depend on it.
        assert client.get("/readyz").status_code == 200
    lab.wait(lambda: client.put(live(lab), json=FIXED, params=NOW).status_code == 202, "it works again")


def test_a_profile_of_many_engines_can_not_be_measured(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web", engine={"accelerator": "CPU", "replicas": 2})
    write_status(lab.api, lab.space, "web", 1, {"web-0": 1, "web-1": 1})
    refusal = problem(client.post("/v1/experiments", json=plan_for(lab)), 422, "many-engines")
    assert "engine.replicas 1" in refusal["detail"]
