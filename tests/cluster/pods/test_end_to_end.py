"""A profile on a real cluster: the chart's operator, a real vLLM engine on CPU in a pod, everything between them.

The tests share one engine, since it takes a minute and more to start, and go through its life in their order.
"""

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from oplab.served import NAME, SPACE, Served

from paceline.operator.workloads import UPDATE_ANNOTATION
from testbed import Cluster, wait_until
from testbed.paceline import NAMESPACE, Images, chart_values, install

CHANGES = 50
pytestmark = pytest.mark.timeout(2_400)


@pytest.fixture(scope="module")
def served(paceline: Cluster) -> Iterator[Served]:
    """The example applied as a user would, and its engine ready."""
    yield Served.apply(paceline)
    paceline.api.kubectl("delete", "ifp", NAME, "-n", SPACE, "--ignore-not-found")


def test_the_example_becomes_ready_and_completes_through_its_service(served: Served) -> None:
    status = served.status()
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "True",
        "Available": "True",
        "Progressing": "False",
        "ConfigApplied": "True",
        "Scheduled": "True",
        "ModelLoaded": "True",
        "EngineCompatible": "True",
    }
    assert status["pods"][0]["applied"] == "True"
    assert served.complete() == "length"


def test_the_engine_runs_confined(served: Served) -> None:
    pod = served.pod()
    run = ("exec", pod["metadata"]["name"], "-n", SPACE, "--", "python3", "-c")
    script = (
        "import os, json, pathlib; "
        "print(json.dumps([os.getuid(), pathlib.Path('/var/run/secrets/kubernetes.io').exists(), "
        "sorted(name for name in os.environ if name.endswith('_SERVICE_HOST')), os.access('/', os.W_OK)]))"
    )
    seen = json.loads(served.cluster.api.kubectl(*run, script).stdout)
    # Kubernetes tells every pod of its own API server, and of nothing else here.
    assert seen == [10_001, False, ["KUBERNETES_SERVICE_HOST"], False]


def test_fifty_patches_reach_the_engine_and_restart_nothing(served: Served) -> None:
    before, first = served.identity(), served.status()["revision"]
    for number in range(CHANGES):
        interval = 2 + number % 9
        served.patch({"pacing": {"mode": "Fixed", "interval": interval}})
        settings = wait_until(
            lambda interval=interval: (
                (found := served.engine_settings())["pacing"].get("interval") == interval and found
            ),
            f"interval {interval}",
        )
        assert settings["pacing"]["mode"] == "Fixed"
    wait_until(lambda: served.status()["revision"] == first + CHANGES, "every change counted")
    assert served.identity() == before
    served.wait_ready(seconds=30)
    assert served.complete() == "length"


def test_a_killed_engine_comes_back_with_the_current_pacing(served: Served) -> None:
    uid, restarts = served.identity()
    served.patch({"pacing": {"mode": "Fixed", "interval": 11}})
    served.wait_interval(11)
    revision = served.status()["revision"]
    # Only processes of the node's own process namespace are seen there.
    served.cluster.node.sandbox.run("pkill", "-KILL", "-f", "vllm.entrypoints.openai.api_server")
    served.wait_ready("False", seconds=60)
    served.wait_ready()
    assert served.identity() == (uid, restarts + 1)
    assert served.status()["pods"][0]["restarts"] == restarts + 1
    settings = served.engine_settings()
    assert (settings["pacing"]["interval"], settings["revision"]) == (11, revision)


def test_an_upgrade_of_the_operator_restarts_no_engine(served: Served, images: Images) -> None:
    before = served.identity()
    values = chart_values(images)
    # A new version of the operator with another engine by default.
    values["operator"] = {"podAnnotations": {"version": "next"}}
    values["engine"]["images"]["cpu"]["tag"] = "next"
    install(served.cluster, values)
    offer = wait_until(lambda: served.status().get("templateUpdate"), "an offer", seconds=120)
    assert UPDATE_ANNOTATION in offer
    assert served.identity() == before
    served.patch({"pacing": {"mode": "Fixed", "interval": 6}})
    served.wait_interval(6, seconds=60)
    assert served.identity() == before
    install(served.cluster, chart_values(images))
    wait_until(lambda: served.status().get("templateUpdate") == "", "the offer is gone", seconds=120)
    assert served.identity() == before


def test_an_engine_works_without_an_operator(served: Served) -> None:
    before = served.identity()
    served.cluster.api.kubectl("scale", "deployment/paceline-operator", "-n", NAMESPACE, "--replicas=0")
    served.cluster.api.kubectl("wait", "--for=delete", "pod", "-n", NAMESPACE, "-l", _operator_pods(), "--timeout=60s")
    assert served.complete() == "length"
    served.patch({"pacing": {"mode": "Fixed", "interval": 3}})
    assert served.engine_settings()["pacing"]["interval"] == 6, "nobody told it"
    served.cluster.api.kubectl("scale", "deployment/paceline-operator", "-n", NAMESPACE, "--replicas=1")
    served.wait_interval(3, seconds=120)
    assert served.identity() == before


def test_a_cold_change_cuts_no_stream_silently(served: Served) -> None:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
    lines: list[str] = []
    began = threading.Event()

    def read() -> None:
        url = f"http://{served.service_address()}/v1/completions"
        with httpx.stream("POST", url, json=body, trust_env=False, timeout=300) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                began.set()

    uid, _ = served.identity()
    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(120)
    served.patch({"engine": {"maxNumSeqs": 8}})
    wait_until(lambda: served.status()["lastChange"]["kind"] == "Cold", "planned as cold")
    assert "running streams are drained" in served.status()["lastChange"]["message"]
    reader.join(300)
    assert not reader.is_alive()
    told = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    whole = told[-1] == "[DONE]" and sum('"text"' in line for line in told) >= 400
    assert whole or any('"error"' in line for line in told), told[-3:]
    wait_until(
        lambda: served.ready().get("status") == "True" and served.identity()[0] != uid, "a new engine", seconds=900
    )
    assert served.complete() == "length"


def test_deletion_leaves_nothing_behind(served: Served) -> None:
    served.cluster.api.kubectl("delete", "ifp", NAME, "-n", SPACE, "--wait")

    def left() -> list[str]:
        kinds = "deployments,replicasets,pods,services,endpointslices,configmaps,secrets,serviceaccounts,pdb,netpol"
        found = served.cluster.api.get(kinds, "-n", SPACE)["items"]
        return [
            f"{item['kind']}/{item['metadata']['name']}"
            for item in found
            if NAME in item["metadata"]["name"] or item["metadata"].get("labels", {}).get("paceline.dev/profile")
        ]

    wait_until(lambda: not left(), "everything is gone", seconds=180, details=lambda: str(left()))


def _operator_pods() -> str:
    return "app.kubernetes.io/component=operator"
