"""Several writers: users, autoscalers, GitOps tools, and newer versions of the operator itself."""

from typing import Any

from oplab import Lab, profile_manifest
from oplab.operator import RunningOperator

from paceline.operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, PODS, PROFILES, SERVICES
from paceline.operator.workloads import UPDATE_ANNOTATION

NEWER = {
    # A newer operator: another image by default, another Python, another user for its pods.
    "engine": {"images": {"CPU": "engine-cpu:2", "NVIDIA": "engine:2"}, "python": "/opt/python3", "runAsUser": 20_000}
}


def settle(lab: Lab, operator: RunningOperator) -> None:
    """Let the operator make another pass over everything, and end it."""
    lab.wait(lambda: operator.is_idle, "idle")
    operator.pass_again()
    lab.wait(lambda: operator.is_idle, "idle")


def test_a_users_labels_and_annotations_survive(lab: Lab) -> None:
    mine = {"metadata": {"annotations": {"mine": "kept"}, "labels": {"team": "red"}}}
    kinds = ((SERVICES, "web"), (DEPLOYMENTS, "web"), (CONFIG_MAPS, "web-settings"), (PROFILES, "web"))
    with lab.operator() as operator:
        (pod,) = lab.serve()
        for resource, name in kinds:
            lab.api.merge(resource, lab.space, name, mine)
        lab.api.merge(
            DEPLOYMENTS, lab.space, "web", {"spec": {"template": {"metadata": {"annotations": {"mine": "kept"}}}}}
        )
        settle(lab, operator)
        lab.change("web", {"pacing": {"mode": "Fixed"}, "engine": {"maxNumSeqs": 4}})
        lab.wait(lambda: pod.engine.settings.revision == 2, "a hot change")
        lab.wait(lambda: "--max-num-seqs" in str(lab.deployment()["spec"]["template"]), "a cold change")
        settle(lab, operator)
    for resource, name in kinds:
        metadata = lab.api.get(resource, lab.space, name)["metadata"]
        assert metadata["annotations"]["mine"] == "kept", resource.kind
        assert metadata["labels"]["team"] == "red", resource.kind
    assert lab.deployment()["spec"]["template"]["metadata"]["annotations"] == {"mine": "kept"}


def test_replicas_set_through_scale_are_followed_and_kept(lab: Lab) -> None:
    with lab.operator() as operator:
        lab.serve()
        scale = lab.api.call("GET", PROFILES.path(lab.space, "web", "scale"))
        assert scale["status"]["selector"] == "app.kubernetes.io/name=paceline-engine,paceline.dev/profile=web"
        assert scale["status"]["replicas"] == 1
        scale["spec"]["replicas"] = 3
        lab.api.call("PUT", PROFILES.path(lab.space, "web", "scale"), scale)
        lab.wait(lambda: lab.deployment()["spec"]["replicas"] == 3, "three replicas")
        # A change of pacing, a user's YAML without replicas, a restarted operator: none puts them back.
        lab.change("web", {"pacing": {"mode": "Fixed"}})
        spec = {"model": {"source": "hf://org/name"}, "engine": {"accelerator": "CPU"}}
        lab.api.apply(profile_manifest(lab.space, "web", spec), manager="user", force=True)
        settle(lab, operator)
    with lab.operator("operator-1") as operator:
        settle(lab, operator)
        assert lab.deployment()["spec"]["replicas"] == 3
        assert lab.api.get(PROFILES, lab.space, "web")["spec"]["engine"]["replicas"] == 3
        lab.change("web", {"engine": {"replicas": 0}})
        lab.wait(lambda: lab.deployment()["spec"]["replicas"] == 0, "scaled to zero")
        lab.wait_condition("Ready", "False", reason="ScaledToZero")


def test_a_workload_scaled_by_hand_stays_until_the_profile_says_another_number(lab: Lab) -> None:
    with lab.operator() as operator:
        lab.serve()
        lab.server.kubectl("scale", "deployment/web", "--replicas=2", "-n", lab.space)
        settle(lab, operator)
        lab.change("web", {"pacing": {"mode": "Fixed"}})
        lab.wait(lambda: lab.status()["revision"] == 2, "a hot change")
        settle(lab, operator)
        assert lab.deployment()["spec"]["replicas"] == 2
        lab.change("web", {"engine": {"replicas": 4}})
        lab.wait(lambda: lab.deployment()["spec"]["replicas"] == 4, "the profile's number")


def test_a_newer_operator_restarts_nothing_and_offers_its_template(lab: Lab) -> None:
    with lab.operator() as operator:
        (pod,) = lab.serve()
        settle(lab, operator)
        before = lab.deployment()["spec"]["template"]
        assert lab.status()["templateUpdate"] == ""
    with lab.operator("newer", **NEWER) as operator:
        offer = lab.wait(lambda: lab.status()["templateUpdate"], "an offer")
        assert "newer pod template" in offer
        assert "containers[engine].image" in offer
        settle(lab, operator)
        assert lab.deployment()["spec"]["template"] == before
        lab.wait_condition("Ready", "True")
        # A hot change goes on as ever, and brings no template.
        lab.change("web", {"pacing": {"mode": "Fixed", "interval": 2}})
        lab.wait(lambda: pod.engine.settings.pacing.interval == 2, "a hot change")
        settle(lab, operator)
        assert lab.deployment()["spec"]["template"] == before
        # Someone's own change of the workload is not taken for a reason either.
        lab.api.merge(DEPLOYMENTS, lab.space, "web", {"spec": {"paused": False, "minReadySeconds": 1}})
        settle(lab, operator)
        assert lab.deployment()["spec"]["template"] == before
        # Taken when it is asked for.
        wanted = offer.rsplit("=", 1)[1]
        lab.api.merge(PROFILES, lab.space, "web", {"metadata": {"annotations": {UPDATE_ANNOTATION: wanted}}})
        lab.wait(lambda: _image(lab) == "engine-cpu:2", "the newer template")
        lab.wait(lambda: lab.status()["templateUpdate"] == "", "the offer is gone")


def test_the_next_cold_change_takes_the_newer_template(lab: Lab) -> None:
    with lab.operator():
        lab.serve()
    with lab.operator("newer", **NEWER):
        lab.wait(lambda: lab.status()["templateUpdate"], "an offer")
        lab.change("web", {"engine": {"maxNumSeqs": 4}})
        lab.wait(lambda: _image(lab) == "engine-cpu:2", "the newer template")
        lab.wait(lambda: lab.status()["templateUpdate"] == "", "the offer is gone")


def test_a_field_that_an_upgrade_added_restarts_nothing(lab: Lab) -> None:
    with lab.operator() as operator:
        lab.serve()
        settle(lab, operator)
    before = lab.deployment()
    # As an operator left it that did not know the field yet.
    noted = before["metadata"]["annotations"]["paceline.dev/cold-spec"]
    older = noted.replace('"rollout.startSeconds": "7200"', '"engine.formerField": "x"')
    assert older != noted
    lab.api.merge(DEPLOYMENTS, lab.space, "web", {"metadata": {"annotations": {"paceline.dev/cold-spec": older}}})
    with lab.operator("newer") as operator:
        settle(lab, operator)
        assert lab.deployment()["spec"]["template"] == before["spec"]["template"]
        assert lab.condition("Ready")["status"] == "True"


def test_an_owner_of_the_pacing_is_not_overruled_by_the_operator(lab: Lab) -> None:
    with lab.operator() as operator:
        lab.serve()
        patch = {"pacing": {"mode": "Fixed", "interval": 5}}
        lab.api.apply(profile_manifest(lab.space, "web", patch), manager="gitops", force=True)
        lab.wait(lambda: lab.status()["revision"] == 2, "applied")
        settle(lab, operator)
    fields = [
        entry["manager"]
        for entry in lab.api.get(PROFILES, lab.space, "web")["metadata"]["managedFields"]
        if "f:pacing" in entry["fieldsV1"].get("f:spec", {})
    ]
    assert fields == ["gitops", "python-httpx"] or set(fields) >= {"gitops"}
    assert "paceline-operator" not in fields


def test_a_profile_that_a_newer_definition_understands_keeps_its_engines(lab: Lab) -> None:
    with lab.operator():
        lab.serve()
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceprofiles.paceline.dev"

    def engine_fields(definition: Any) -> Any:
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return schema["properties"]["spec"]["properties"]["engine"]["properties"]

    definition = lab.api.call("GET", crd)
    engine_fields(definition)["turbo"] = {"type": "string", "maxLength": 8}
    lab.api.call("PUT", crd, definition)
    try:
        lab.wait(lambda: lab.change("web", {"engine": {"turbo": "on"}})["spec"]["engine"].get("turbo"), "taken")
        before = lab.deployment()["spec"]
        with lab.operator("older") as operator:
            condition = lab.wait_condition("Ready", "False", reason="ProfileNotUnderstood")
            assert "spec.engine.turbo" in condition["message"]
            assert "upgrade the operator" in condition["message"]
            settle(lab, operator)
            assert lab.deployment()["spec"] == before
            assert lab.condition("Available")["status"] == "True"
            lab.change("web", {"engine": {"turbo": None}})
            lab.wait_condition("Ready", "True")
    finally:
        definition = lab.api.call("GET", crd)
        del engine_fields(definition)["turbo"]
        lab.api.call("PUT", crd, definition)


def test_no_pod_is_ever_written_but_for_its_revision(lab: Lab) -> None:
    with lab.operator() as operator:
        lab.serve()
        lab.change("web", {"pacing": {"mode": "Fixed"}})
        lab.wait(lambda: lab.status()["revision"] == 2, "a hot change")
        settle(lab, operator)
        client = operator.client
        assert client is not None
        written = {verb for verb, path in client.calls if path.startswith(PODS.path(lab.space)) and verb != "GET"}
    assert written <= {"PATCH"}


def _image(lab: Lab) -> str:
    return str(lab.deployment()["spec"]["template"]["spec"]["containers"][0]["image"])
