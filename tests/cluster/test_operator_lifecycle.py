"""A profile's life: made, served, changed hot and cold, refused, deleted."""

from typing import Any

import pytest
from oplab import Lab

from paceline.operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    NETWORK_POLICIES,
    PROFILES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from testbed import wait_until

FIXED_8 = {"pacing": {"mode": "Fixed", "interval": 8}}


def test_a_profile_gets_its_objects_and_becomes_ready_once_its_engine_is(lab: Lab) -> None:
    with lab.operator():
        lab.profile(pacing={"mode": "Fixed", "interval": 4})
        lab.wait_deployment()
        assert lab.wait_condition("Ready", "False", reason="RollingOut")["observedGeneration"] == 1
        made = {
            (resource.kind, item["metadata"]["name"])
            for resource in (CONFIG_MAPS, SECRETS, SERVICES, SERVICE_ACCOUNTS, DISRUPTION_BUDGETS, NETWORK_POLICIES)
            for item in lab.api.list(resource, lab.space)
        }
        assert made == {
            ("ConfigMap", "web-settings"),
            ("Secret", "web-admin-token"),
            ("Service", "web"),
            ("Service", "web-admin"),
            ("ServiceAccount", "web-engine"),
            ("PodDisruptionBudget", "web"),
            ("NetworkPolicy", "web"),
        }
        (pod,) = lab.pods()
        pod.creating()
        lab.wait_condition("Ready", "False", reason="Starting")
        pod.running(ready=False)
        lab.wait_condition("Ready", "False", reason="Loading")
        pod.running(ready=True)
        lab.wait_condition("Ready", "True")
        status = lab.status()
        assert (status["revision"], status["pacing"], status["replicas"], status["readyReplicas"]) == (
            1,
            "Fixed/4",
            1,
            1,
        )
        assert status["selector"] == "app.kubernetes.io/name=paceline-engine,paceline.dev/profile=web"
        assert status["endpoint"] == f"http://web.{lab.space}.svc"
        assert status["lastChange"]["kind"] == "Cold"
        (told,) = status["pods"]
        assert (told["name"], told["ready"], told["applied"], told["revision"]) == (pod.name, "True", "True", 1)
        assert {c["type"]: c["status"] for c in status["conditions"]} == {
            "Ready": "True",
            "Available": "True",
            "Progressing": "False",
            "ConfigApplied": "True",
            "Scheduled": "True",
            "ModelLoaded": "True",
            "EngineCompatible": "True",
        }


def test_a_hot_change_reaches_every_engine_and_touches_no_pod(lab: Lab) -> None:
    with lab.operator():
        pods = lab.serve(count=3, engine={"accelerator": "CPU", "replicas": 3})
        generation = lab.deployment()["metadata"]["generation"]
        before = [pod.manifest()["metadata"]["uid"] for pod in pods]
        lab.change("web", FIXED_8)
        lab.wait(
            lambda: lab.status()["revision"] == 2 and lab.condition("ConfigApplied")["status"] == "True", "applied"
        )
        assert [pod.engine.settings.pacing.interval for pod in pods] == [8, 8, 8]
        assert [pod.engine.settings.revision for pod in pods] == [2, 2, 2]
        assert lab.deployment()["metadata"]["generation"] == generation
        assert [pod.manifest()["metadata"]["uid"] for pod in pods] == before
        change = lab.status()["lastChange"]
        assert change["kind"] == "Hot"
        assert "pacing.interval: 4 -> 8" in change["message"]
        # Kubelet brings the settings file up to date at once, so that an engine that restarts now starts with them.
        lab.wait(
            lambda: all(
                pod.manifest()["metadata"].get("annotations", {}).get("paceline.dev/revision") == "2" for pod in pods
            ),
            "volumes refreshed",
        )
        ledger = lab.api.get(CONFIG_MAPS, lab.space, "web-settings")["data"]["settings.json"]
        assert '"interval": 8' in ledger


def test_a_cold_change_makes_a_new_template_and_says_so(lab: Lab) -> None:
    with lab.operator():
        (pod,) = lab.serve()
        lab.change("web", {"engine": {"maxNumSeqs": 8}})
        lab.wait(lambda: "--max-num-seqs" in str(lab.deployment()["spec"]["template"]), "a new template")
        condition = lab.wait_condition("Ready", "False", reason="RollingOut")
        assert "1 to be replaced" in condition["message"]
        assert lab.status()["lastChange"]["kind"] == "Cold"
        assert "engine.maxNumSeqs: unset -> 8" in lab.status()["lastChange"]["message"]
        assert lab.status()["revision"] == 1, "the revision counts hot changes only"
        pod.delete()
        (fresh,) = lab.pods()
        fresh.running(ready=True)
        lab.wait_condition("Ready", "True")


def test_each_change_is_told_in_one_event(lab: Lab) -> None:
    with lab.operator():
        lab.serve()
        lab.change("web", FIXED_8)
        lab.wait(lambda: lab.status()["lastChange"]["kind"] == "Hot", "told")
        lab.change("web", {"rollout": {"strategy": "RollingUpdate"}})
        lab.wait(lambda: lab.status()["lastChange"]["kind"] == "None", "told")
    told = {event["reason"]: event["note"] for event in lab.api.list(EVENTS, lab.space)}
    assert set(told) == {"ColdChange", "HotChange", "NoneChange"}
    assert "pacing.interval: 4 -> 8" in told["HotChange"]
    assert told["NoneChange"] == "nothing changed for the engines"
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert lab.deployment()["spec"]["strategy"] == strategy
    with lab.operator("operator-1"):
        lab.change("web", {"rollout": {"strategy": "Recreate"}})
        lab.wait(lambda: lab.deployment()["spec"]["strategy"] == {"type": "Recreate"}, "and back")


def test_an_engine_that_does_not_answer_is_named_until_it_does(lab: Lab) -> None:
    with lab.operator():
        pods = lab.serve(count=2, engine={"accelerator": "CPU", "replicas": 2})
        pods[1].engine.down = True
        lab.change("web", FIXED_8)
        condition = lab.wait_condition("ConfigApplied", "False", reason="SettingsPending")
        assert pods[1].name in condition["message"]
        assert pods[0].name not in condition["message"]
        lab.wait(lambda: pods[0].engine.settings.revision == 2, "the other engine has it")
        pods[1].engine.down = False
        lab.wait_condition("ConfigApplied", "True")
        assert pods[1].engine.settings.pacing.interval == 8


def test_an_engine_core_that_lags_is_named(lab: Lab) -> None:
    with lab.operator():
        (pod,) = lab.serve()
        pod.engine.core_revisions = (2, 1)
        lab.change("web", FIXED_8)
        condition = lab.wait_condition("ConfigApplied", "False")
        assert "engine core 1 at revision 1" in condition["message"]
        pod.engine.core_revisions = ()
        lab.wait_condition("ConfigApplied", "True")


def test_a_restarted_engine_is_told_again(lab: Lab) -> None:
    with lab.operator():
        (pod,) = lab.serve()
        lab.change("web", FIXED_8)
        lab.wait(lambda: pod.engine.settings.revision == 2, "applied")
        pod.crashed("Killed")
        lab.wait_condition("Ready", "False", reason="CrashLoopBackOff")
        # It started with the settings of a file that was not yet brought up to date.
        pod.engine.settings = pod.engine.received[0]
        assert pod.engine.settings.revision == 1
        pod.running(ready=False)
        lab.wait(lambda: pod.engine.settings.revision == 2, "told again before it is ready")
        pod.running(ready=True)
        lab.wait_condition("Ready", "True")


def test_an_engine_ahead_of_the_ledger_is_overtaken(lab: Lab) -> None:
    with lab.operator():
        (pod,) = lab.serve()
    pod.engine.settings = pod.engine.settings.model_copy(update={"epoch": 40, "revision": 9})
    with lab.operator("operator-1"):
        lab.wait(lambda: pod.engine.settings.epoch == 41, "a higher epoch")
        lab.wait_condition("ConfigApplied", "True")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param(
            {"model": {"source": "file:///etc/models/x"}}, "lies below no folder that the operator allows", id="folder"
        ),
        pytest.param(
            {"engine": {"accelerator": "NVIDIA", "parallelism": {"tensor": 4, "nodes": 2}}},
            "has no LeaderWorkerSet API",
            id="nodes",
        ),
        pytest.param({"engine": {"extraArgs": ["--max-model", "5"]}}, "use that field instead", id="abbreviation"),
        pytest.param(
            {
                "engine": {
                    "accelerator": "NVIDIA",
                    "parallelism": {"tensor": 2},
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                }
            },
            "parallelism needs 2 a node",
            id="devices",
        ),
    ],
)
def test_a_profile_that_can_not_be_built_is_refused_with_what_to_do(
    lab: Lab, parts: dict[str, Any], words: str
) -> None:
    with lab.operator():
        lab.profile(**parts)
        condition = lab.wait_condition("Ready", "False", reason="ProfileRefused")
        assert words in condition["message"]
        assert lab.api.find(DEPLOYMENTS, lab.space, "web") is None
        note = lab.wait(lambda: lab.api.list(EVENTS, lab.space), "an event")[0]
        assert (note["type"], note["reason"]) == ("Warning", "ProfileRefused")


def test_a_refused_change_leaves_what_runs(lab: Lab) -> None:
    with lab.operator():
        (pod,) = lab.serve()
        template = lab.deployment()["spec"]["template"]
        lab.change("web", {"model": {"source": "file:///etc/x"}, "pacing": {"interval": 9}})
        lab.wait_condition("Ready", "False", reason="ProfileRefused")
        assert lab.deployment()["spec"]["template"] == template
        assert lab.condition("Available")["status"] == "True"
        assert pod.engine.settings.revision == 1
        lab.change("web", {"model": {"source": "hf://org/name"}})
        lab.wait(lambda: pod.engine.settings.pacing.interval == 9, "the hot part comes with the mended profile")


def test_someone_elses_object_is_never_taken_over(lab: Lab) -> None:
    port = {"name": "mine", "port": 5432, "protocol": "TCP", "targetPort": 5432}
    mine = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": lab.space},
        "spec": {"selector": {"app": "database"}, "ports": [port]},
    }
    lab.api.create(mine)
    with lab.operator():
        lab.profile()
        condition = lab.wait_condition("Ready", "False", reason="NameTaken")
        assert "Service web exists" in condition["message"]
        assert "rename the profile" in condition["message"]
    service = lab.api.get(SERVICES, lab.space, "web")
    assert service["spec"]["selector"] == {"app": "database"}
    assert "ownerReferences" not in service["metadata"]


def test_what_others_undid_is_done_again(lab: Lab) -> None:
    with lab.operator():
        lab.serve()
        lab.api.merge(SERVICES, lab.space, "web", {"spec": {"selector": {"app": "other"}}})
        lab.api.merge(DEPLOYMENTS, lab.space, "web", {"spec": {"strategy": {"type": "RollingUpdate"}}})
        lab.api.delete(NETWORK_POLICIES, lab.space, "web")
        lab.api.delete(CONFIG_MAPS, lab.space, "web-settings")
        lab.wait(lambda: lab.api.find(NETWORK_POLICIES, lab.space, "web"), "the policy is back")
        lab.wait(lambda: lab.api.find(CONFIG_MAPS, lab.space, "web-settings"), "the ledger is back")
        lab.wait(
            lambda: "app.kubernetes.io/name" in lab.api.get(SERVICES, lab.space, "web")["spec"]["selector"], "selector"
        )
        lab.wait(lambda: lab.deployment()["spec"]["strategy"]["type"] == "Recreate", "strategy")
        lab.wait_condition("ConfigApplied", "True")
        assert lab.status()["revision"] == 2, "nobody knows which knobs revision 1 had"


def test_a_deleted_profile_is_let_go_without_a_finalizer(lab: Lab) -> None:
    with lab.operator() as operator:
        lab.serve()
        assert "finalizers" not in lab.api.get(PROFILES, lab.space, "web")["metadata"]
        lab.api.delete(PROFILES, lab.space, "web")
        assert lab.api.find(PROFILES, lab.space, "web") is None
        wait_until(lambda: operator.is_idle, "idle")
        for resource in (CONFIG_MAPS, SECRETS, SERVICES, DEPLOYMENTS):
            for item in lab.api.list(resource, lab.space):
                (owner,) = item["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceProfile", "web", True)
