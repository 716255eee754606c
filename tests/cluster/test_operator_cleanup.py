"""Deletion, with Kubernetes' own controllers at work: nothing is left, nothing is stuck, nobody's finalizer touched."""

from oplab import Lab, RefusedError

from paceline.operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    PROFILES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)

OBJECTS = (DEPLOYMENTS, PODS, CONFIG_MAPS, SECRETS, SERVICES, SERVICE_ACCOUNTS, DISRUPTION_BUDGETS, NETWORK_POLICIES)


def ours(lab: Lab) -> list[str]:
    return [
        f"{resource.kind} {item['metadata']['name']}"
        for resource in OBJECTS
        for item in lab.api.list(resource, lab.space)
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "paceline"
    ]


def made(lab: Lab) -> None:
    lab.profile()
    lab.wait_deployment()
    lab.wait(lambda: lab.api.list(PODS, lab.space), "the Deployment's pod", seconds=60)


def test_deletion_leaves_nothing(controlled_lab: Lab) -> None:
    with controlled_lab.operator():
        made(controlled_lab)
        assert len(ours(controlled_lab)) == 9
        controlled_lab.api.delete(PROFILES, controlled_lab.space, "web")
        controlled_lab.wait(lambda: not ours(controlled_lab), "everything is gone", seconds=90)
        assert controlled_lab.api.list(PROFILES, controlled_lab.space) == []


def test_deletion_needs_no_operator(controlled_lab: Lab) -> None:
    with controlled_lab.operator():
        made(controlled_lab)
    # Uninstalled: nobody is there to remove a finalizer.
    controlled_lab.api.delete(PROFILES, controlled_lab.space, "web")
    controlled_lab.wait(lambda: not ours(controlled_lab), "everything is gone", seconds=90)


def test_a_namespace_goes_with_its_profiles_after_the_operator_is_uninstalled(controlled_lab: Lab) -> None:
    with controlled_lab.operator():
        made(controlled_lab)
    controlled_lab.server.kubectl("delete", "namespace", controlled_lab.space, "--wait=false")
    controlled_lab.wait(lambda: _is_gone(controlled_lab), "the namespace is gone", seconds=120)


def test_anothers_finalizer_is_not_touched(controlled_lab: Lab) -> None:
    with controlled_lab.operator() as operator:
        made(controlled_lab)
        path = PROFILES.path(controlled_lab.space, "web")
        mark = {"metadata": {"finalizers": ["example.com/other"]}}
        controlled_lab.api.merge(PROFILES, controlled_lab.space, "web", mark)
        controlled_lab.api.call("DELETE", path)
        controlled_lab.wait(lambda: operator.is_idle, "idle")
        assert controlled_lab.api.call("GET", path)["metadata"]["finalizers"] == ["example.com/other"]
        assert len(ours(controlled_lab)) == 9, "what runs goes on until the other is done"
        controlled_lab.api.merge(PROFILES, controlled_lab.space, "web", {"metadata": {"finalizers": None}})
        controlled_lab.wait(lambda: not ours(controlled_lab), "everything is gone", seconds=90)


def test_a_profile_made_anew_under_its_name_waits_for_the_old_ones_objects(controlled_lab: Lab) -> None:
    with controlled_lab.operator():
        made(controlled_lab)
        first = controlled_lab.api.get(PROFILES, controlled_lab.space, "web")["metadata"]["uid"]
        controlled_lab.api.delete(PROFILES, controlled_lab.space, "web")
        second = controlled_lab.profile()["metadata"]["uid"]
        assert first != second

        def belongs() -> bool:
            found = controlled_lab.api.find(DEPLOYMENTS, controlled_lab.space, "web")
            return bool(found) and found["metadata"]["ownerReferences"][0]["uid"] == second

        controlled_lab.wait(belongs, "the new profile has a Deployment of its own", seconds=120)
        controlled_lab.wait(lambda: controlled_lab.status().get("observedGeneration") == 1, "observed", seconds=60)
        assert controlled_lab.status()["revision"] == 1


def _is_gone(lab: Lab) -> bool:
    try:
        lab.api.call("GET", f"/api/v1/namespaces/{lab.space}")
    except RefusedError as error:
        return error.status == 404
    return False
