"""Every state of an engine is explained by its cause, and goes when the cause does."""

from typing import Any

import pytest
from oplab import Lab

from paceline.operator.kube.resources import DEPLOYMENTS

TRACE = """(APIServer pid=1) INFO loading
Traceback (most recent call last):
  File "/usr/lib/python3/vllm/engine.py", line 5, in load
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
"""
NOT_FOUND = """Traceback (most recent call last):
OSError: /models/typo is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'
If this is a private repository, make sure to pass a token
"""

TABLE: list[Any] = [
    pytest.param(
        lambda pod: pod.unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        "Unschedulable",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        {"Scheduled": "False", "Progressing": "False"},
        id="no device",
    ),
    pytest.param(
        lambda pod: pod.waiting("ImagePullBackOff", 'Back-off pulling image "engine:typo"'),
        "ImagePullBackOff",
        'Back-off pulling image "engine:typo"',
        {"Scheduled": "True", "ModelLoaded": "False"},
        id="no image",
    ),
    pytest.param(
        lambda pod: pod.waiting("ErrImagePull", "manifest unknown"),
        "ImagePullBackOff",
        "manifest unknown",
        {},
        id="no image, first try",
    ),
    pytest.param(
        lambda pod: pod.waiting("CreateContainerConfigError", 'secret "hugging-face" not found'),
        "CreateContainerConfigError",
        'secret "hugging-face" not found',
        {},
        id="no secret",
    ),
    pytest.param(
        lambda pod: pod.crashed("", exit_code=137, reason="OOMKilled"),
        "OOMKilled",
        "raise spec.engine.resources.limits.memory",
        {"ModelLoaded": "False"},
        id="out of memory",
    ),
    pytest.param(
        lambda pod: pod.crashed(TRACE),
        "CrashLoopBackOff",
        "its last line: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        {"ModelLoaded": "False"},
        id="crash",
    ),
    pytest.param(
        lambda pod: pod.crashed(NOT_FOUND),
        "ModelNotFound",
        "/models/typo is not a local folder and is not a valid model identifier",
        {"ModelLoaded": "False"},
        id="no model",
    ),
    pytest.param(
        lambda pod: pod.running(ready=False), "Loading", "is not ready yet", {"Progressing": "True"}, id="loading"
    ),
]


@pytest.mark.parametrize(("happens", "reason", "words", "others"), TABLE)
def test_the_cause_is_told_and_goes(lab: Lab, happens: Any, reason: str, words: str, others: dict[str, str]) -> None:
    with lab.operator():
        lab.profile()
        lab.wait_deployment()
        (pod,) = lab.pods()
        happens(pod)
        condition = lab.wait_condition("Ready", "False", reason=reason)
        assert words in condition["message"]
        assert pod.name in condition["message"]
        for kind, status in others.items():
            assert lab.condition(kind)["status"] == status, kind
        assert lab.condition("Available")["status"] == "False"
        assert words in lab.status()["pods"][0]["message"]
        pod.running(ready=True)
        lab.wait_condition("Ready", "True")
        assert lab.status()["pods"][0]["message"] == ""


def test_an_engine_that_crashes_later_is_no_longer_ready_and_recovers_untouched(lab: Lab) -> None:
    with lab.operator():
        (pod,) = lab.serve()
        pod.crashed("RuntimeError: the device fell off the bus\n")
        condition = lab.wait_condition("Ready", "False", reason="CrashLoopBackOff")
        assert "the device fell off the bus" in condition["message"]
        pod.running(ready=False)
        lab.wait(lambda: lab.status()["pods"][0]["restarts"] == 1, "counted")
        assert "the device fell off the bus" in lab.condition("Ready")["message"], "loading again is no news yet"
        pod.running(ready=True)
        lab.wait_condition("Ready", "True")
        assert lab.status()["pods"][0]["restarts"] == 1


def test_one_bad_engine_among_several_leaves_the_profile_available(lab: Lab) -> None:
    with lab.operator():
        pods = lab.serve(count=3, engine={"accelerator": "CPU", "replicas": 3})
        pods[2].crashed("boom")
        condition = lab.wait_condition("Ready", "False", reason="CrashLoopBackOff")
        assert pods[2].name in condition["message"]
        assert lab.condition("Available") == {**lab.condition("Available"), "status": "True", "reason": "EngineReady"}
        assert lab.status()["readyReplicas"] == 2


def test_an_incompatible_engine_serves_and_says_why_it_is_not_paced(lab: Lab) -> None:
    with lab.operator():
        lab.profile()
        lab.wait_deployment()
        (pod,) = lab.pods()
        pod.engine.compatible, pod.engine.reasons = False, ("vLLM 0.19 is older than 0.22.1",)
        pod.running(ready=True)
        condition = lab.wait_condition("EngineCompatible", "False", reason="EngineIncompatible")
        assert "vLLM 0.19 is older than 0.22.1" in condition["message"]
        assert "unpaced" in condition["message"]


def test_a_token_that_an_engine_refuses_is_named(lab: Lab) -> None:
    with lab.operator():
        lab.profile()
        lab.wait_deployment()
        (pod,) = lab.pods()
        pod.engine.rejects_token = True
        pod.running(ready=True)
        condition = lab.wait_condition("ConfigApplied", "False", reason="SettingsPending")
        assert "refused the admin token" in condition["message"]
        pod.engine.rejects_token = False
        lab.wait_condition("ConfigApplied", "True")


def test_settings_that_an_engine_can_not_run_are_told_in_its_words(lab: Lab) -> None:
    with lab.operator():
        (pod,) = lab.serve()
        pod.engine.smallest_interval = 4
        lab.change("web", {"pacing": {"mode": "Fixed", "interval": 2}})
        condition = lab.wait_condition("ConfigApplied", "False", reason="SettingsRefused")
        assert "can't run these settings: the interval is too small" in condition["message"]
        assert pod.engine.settings.revision == 1, "it serves on as before"
        lab.change("web", {"pacing": {"interval": 5}})
        lab.wait_condition("ConfigApplied", "True")


def test_a_rolling_update_without_room_says_the_way_out(lab: Lab) -> None:
    with lab.operator():
        lab.serve(rollout={"strategy": "RollingUpdate"})
        lab.change("web", {"engine": {"maxNumSeqs": 4}})
        lab.wait(lambda: "--max-num-seqs" in str(lab.deployment()["spec"]["template"]), "a new template")
        (surge,) = lab.pods()
        surge.unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
        condition = lab.wait_condition("Progressing", "False", reason="Unschedulable")
        assert "set rollout.strategy to Recreate" in condition["message"]
        assert lab.condition("Available")["status"] == "True"


def test_what_stops_the_deployment_itself_is_told(lab: Lab) -> None:
    with lab.operator():
        lab.profile()
        lab.wait_deployment()
        message = 'pods "web-1" is forbidden: exceeded quota: gpus'
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
        lab.api.merge(DEPLOYMENTS, lab.space, "web", {"status": {"conditions": [failure]}}, "status")
        condition = lab.wait_condition("Ready", "False", reason="FailedCreate")
        assert "exceeded quota" in condition["message"]
        assert lab.condition("Scheduled")["status"] == "False"


def test_a_condition_keeps_its_time_while_its_status_stays(lab: Lab) -> None:
    with lab.operator():
        lab.serve()
        ready = lab.condition("Ready")["lastTransitionTime"]
        lab.change("web", {"pacing": {"mode": "Fixed"}})
        lab.wait(lambda: lab.status()["revision"] == 2, "a hot change")
        lab.wait_condition("Ready", "True")
        assert lab.condition("Ready")["lastTransitionTime"] == ready
        assert lab.condition("Ready")["observedGeneration"] == 2
