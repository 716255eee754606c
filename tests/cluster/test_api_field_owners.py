"""The control API beside other tools that write the same profile: who declares a field, and who overwrote what."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from apilab import FIXED, NOW, live, plan_for, problem, write_status
from oplab import Lab, profile_manifest

from paceline.control_api.profiles.ownership import MANAGER
from paceline.operator.kube.resources import PROFILES

COALESCED = {"finalChunk": "Enabled", "maxSpanTokens": 4096, "admission": "SinglePrefill"}
DECLARED = {"model": {"source": "hf://org/name"}, "pacing": {"mode": "Fixed", "interval": 5}}


def managers(lab: Lab, field: str, name: str = "web", part: str = "f:pacing") -> set[str]:
    entries = lab.api.get(PROFILES, lab.space, name)["metadata"]["managedFields"]
    return {entry["manager"] for entry in entries if field in entry["fieldsV1"].get("f:spec", {}).get(part, {})}


def test_fields_that_another_tool_declares_are_taken_over_only_when_asked(lab: Lab, client: httpx.Client) -> None:
    declared = {"model": {"source": "hf://org/name"}, "pacing": {"mode": "Fixed", "interval": 5}}
    lab.api.apply(profile_manifest(lab.space, "web", declared), manager="gitops")
    held = problem(client.put(live(lab), json=FIXED, params=NOW), 409, "field-owned")
    assert held["managers"] == ["gitops"]
    assert held["errors"] == [{"field": "interval", "message": "declared by gitops"}]
    assert "?force=true" in held["detail"]
    assert lab.api.get(PROFILES, lab.space, "web")["spec"]["pacing"]["interval"] == 5
    write_status(lab.api, lab.space, "web", 1, {"web-0": 1})
    measured = problem(client.post("/v1/experiments", json=plan_for(lab)), 409, "field-owned")
    assert measured["managers"] == ["gitops"]

    taken = client.put(live(lab), json=FIXED, params={**NOW, "force": "true"})
    assert taken.status_code == 202, taken.text
    assert managers(lab, "f:interval") == {MANAGER}
    # From then on it is ours, until the tool applies its own again.
    assert client.put(live(lab), json={**FIXED, "interval": 9}, params=NOW).status_code == 202
    lab.api.apply(profile_manifest(lab.space, "web", declared), manager="gitops", force=True)
    shown = client.get(live(lab)).json()
    assert shown["pacing"]["interval"] == 5
    assert shown["supersededBy"] == "gitops"
    problem(client.put(live(lab), json=FIXED, params=NOW), 409, "field-owned")


def test_a_file_that_kubectl_applied_declares_what_stands_in_it(lab: Lab, client: httpx.Client) -> None:
    spec: dict[str, Any] = {"model": {"source": "hf://org/name"}, "pacing": {"mode": "Fixed", "interval": 5}}
    lab.server.apply(profile_manifest(lab.space, "web", spec))
    held = problem(client.put(live(lab), json=FIXED, params=NOW), 409, "field-owned")
    assert held["managers"] == ["kubectl-client-side-apply"]
    # Left out of the file, it is nobody's, though its default has been written by kubectl.
    del spec["pacing"]
    lab.server.apply(profile_manifest(lab.space, "other", spec))
    assert managers(lab, "f:interval", "other") == {"kubectl-client-side-apply"}
    assert client.put(live(lab, name="other"), json=FIXED, params=NOW).status_code == 202


def test_a_change_by_hand_supersedes_and_holds_nothing(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    client.put(live(lab), json=FIXED, params=NOW)
    patch = '{"spec": {"pacing": {"interval": 3}}}'
    lab.server.kubectl("patch", "ifp", "web", "-n", lab.space, "--type=merge", "-p", patch)
    shown = client.get(live(lab)).json()
    assert (shown["pacing"]["interval"], shown["supersededBy"]) == (3, "kubectl-patch")
    again = client.put(live(lab), json=FIXED, params=NOW)
    assert again.status_code == 202
    assert again.json()["supersededBy"] is None


def test_a_change_that_is_overwritten_while_it_is_waited_for_is_told(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.put, live(lab), json=FIXED, params={"wait": "60s"})
        lab.wait(lambda: MANAGER in managers(lab, "f:mode"), "the change is kept")
        declared = {"pacing": {"mode": "Fixed", "interval": 5}}
        lab.api.apply(profile_manifest(lab.space, "web", declared), manager="gitops", force=True)
        told = problem(waiting.result(), 409, "superseded")
    assert told["supersededBy"] == "gitops"


def test_coalescing_reaches_the_engines_and_leaves_the_pacing_to_the_file_that_declares_it(
    lab: Lab, client: httpx.Client
) -> None:
    with lab.operator():
        (pod,) = lab.serve()
        lab.api.apply(profile_manifest(lab.space, "web", DECLARED), manager="gitops", force=True)
        pod.engine.obstacles = ("blocks of 784 tokens",)
        answer = client.put(live(lab, "coalescing"), json=COALESCED, params={"wait": "30s"})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["coalescing"], answer.json()["supersededBy"]) == (COALESCED, None)
        assert [engine["uncoalesced"] for engine in answer.json()["engines"]] == ["blocks of 784 tokens"]
        assert pod.engine.settings.coalescing.max_span_tokens == 4096
        assert pod.engine.settings.pacing.interval == 5
    # Nobody set the pacing here, so nobody overwrote it.
    assert client.get(live(lab)).json()["supersededBy"] is None
    assert managers(lab, "f:interval") == {"gitops"}
    assert managers(lab, "f:finalChunk", part="f:coalescing") == {MANAGER}


def test_each_part_is_superseded_by_who_changed_it(lab: Lab, client: httpx.Client) -> None:
    lab.profile("web")
    client.put(live(lab), json=FIXED, params=NOW)
    client.put(live(lab, "coalescing"), json=COALESCED, params=NOW)
    theirs = {**DECLARED, "pacing": FIXED, "coalescing": {**COALESCED, "maxSpanTokens": 512}}
    lab.api.apply(profile_manifest(lab.space, "web", theirs), manager="gitops", force=True)
    assert client.get(live(lab)).json()["supersededBy"] is None
    assert client.get(live(lab, "coalescing")).json()["supersededBy"] == "gitops"
    held = problem(client.put(live(lab, "coalescing"), json=COALESCED, params=NOW), 409, "field-owned")
    assert held["errors"] == [{"field": "maxSpanTokens", "message": "declared by gitops"}]
    assert "paceline coalesce --force" in held["detail"]
