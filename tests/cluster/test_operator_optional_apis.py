"""APIs that a cluster may lack: LeaderWorkerSet and PodMonitor, found when they come, without a restart.

The definitions installed here are open ones of the right names: no controller acts on them, and no engine ran on two
nodes here. What is tested is what the operator asks for.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from oplab import Api, Lab, new_space, profile_api
from oplab.engines import FakeEngines

from paceline.operator.kube.resources import DEPLOYMENTS, POD_MONITORS, WORKER_SETS, Resource
from testbed import ApiServer, wait_until

TWO_NODES = {
    "model": {"source": "pvc://models/large"},
    "engine": {"accelerator": "NVIDIA", "parallelism": {"tensor": 8, "pipeline": 2, "nodes": 2}, "replicas": 2},
}


@pytest.fixture
def own_lab(engines: FakeEngines) -> Iterator[Lab]:
    """A lab on a server of its own, since definitions are the whole cluster's."""
    with ApiServer.running() as server, profile_api(server) as api, new_space(api) as space:
        yield Lab(server, api, engines, space)


def define(api: Api, resource: Resource) -> None:
    """Define a kind that takes anything."""
    group, version = resource.api_version.split("/")
    open_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": resource.kind, "plural": resource.plural}
    definition: dict[str, Any] = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": open_object}}
            ],
        },
    }
    api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    wait_until(lambda: api.is_served(resource), f"{resource.kind} is served")


def test_a_multi_node_profile_waits_for_the_api_and_is_then_built(own_lab: Lab) -> None:
    with own_lab.operator(optionalApiSeconds=0.5):
        own_lab.profile(spec=TWO_NODES)
        condition = own_lab.wait_condition("Ready", "False", reason="ProfileRefused")
        assert "install the LeaderWorkerSet controller, or set nodes to 1" in condition["message"]
        define(own_lab.api, WORKER_SETS)
        own_lab.wait(lambda: own_lab.api.find(WORKER_SETS, own_lab.space, "web"), "the set is there", seconds=60)
        made = own_lab.api.get(WORKER_SETS, own_lab.space, "web")["spec"]
        assert made["replicas"] == 2
        template = made["leaderWorkerTemplate"]
        assert template["size"] == 2
        leader, worker = (template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate"))
        assert leader["command"][-8:] == [
            *("--nnodes", "2", "--node-rank", "0"),
            *("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", "29500"),
        ]
        assert worker["command"][-9:] == [
            *("--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)"),
            *("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", "29500", "--headless"),
        ]
        assert leader["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        assert "readinessProbe" in leader
        assert "readinessProbe" not in worker
        assert own_lab.api.find(DEPLOYMENTS, own_lab.space, "web") is None
        # Back on one node the set goes, and a Deployment takes its place.
        own_lab.change("web", {"engine": {"parallelism": {"pipeline": 1, "nodes": 1}}})
        own_lab.wait_deployment()
        own_lab.wait(lambda: own_lab.api.find(WORKER_SETS, own_lab.space, "web") is None, "the set is gone")


def test_a_pod_monitor_is_made_where_its_api_is(own_lab: Lab) -> None:
    with own_lab.operator(engine={"podMonitor": True}, optionalApiSeconds=0.5):
        own_lab.profile()
        own_lab.wait_deployment()
        define(own_lab.api, POD_MONITORS)
        own_lab.wait(lambda: own_lab.api.find(POD_MONITORS, own_lab.space, "web"), "the monitor is there", seconds=60)
        endpoints = own_lab.api.get(POD_MONITORS, own_lab.space, "web")["spec"]["podMetricsEndpoints"]
        assert endpoints == [{"port": "http", "path": "/metrics"}]
