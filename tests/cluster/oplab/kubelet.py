"""The parts of the Deployment controller and of kubelet, by hand: pods made from a template, and their statuses."""

import copy
from dataclasses import dataclass
from typing import Any

from oplab.api import Api, Manifest
from oplab.engines import FakeEngine, FakeEngines
from paceline.operator.kube.resources import DEPLOYMENTS, PODS


@dataclass
class Pod:
    """A pod of the test, and the engine behind its address."""

    api: Api
    namespace: str
    name: str
    address: str
    engine: FakeEngine
    restarts: int = 0
    last_state: Manifest | None = None

    def manifest(self) -> Any:
        return self.api.get(PODS, self.namespace, self.name)

    def unschedulable(self, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._write({"phase": "Pending", "conditions": [condition]})

    def creating(self) -> None:
        self._write(self._container({"waiting": {"reason": "ContainerCreating"}}, phase="Pending"))

    def waiting(self, reason: str, message: str = "") -> None:
        self._write(self._container({"waiting": {"reason": reason, "message": message}}, phase="Pending"))

    def running(self, *, ready: bool) -> None:
        self._write(self._container({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, ready=ready))

    def crashed(self, message: str, *, exit_code: int = 1, reason: str = "Error") -> None:
        """End the engine's process; kubelet waits before it starts the next."""
        self.restarts += 1
        self.last_state = {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}
        self._write(self._container({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}))

    def delete(self) -> None:
        self.api.call("DELETE", PODS.path(self.namespace, self.name), {"gracePeriodSeconds": 0})

    def _container(self, state: Manifest, *, ready: bool = False, phase: str = "Running") -> Manifest:
        status: Manifest = {
            "name": "engine",
            "ready": ready,
            "started": ready,
            "restartCount": self.restarts,
            "state": state,
            "image": "engine:1",
            "imageID": "",
            "containerID": f"containerd://{self.name}-{self.restarts}",
        }
        if self.last_state:
            status["lastState"] = self.last_state
        truth = "True" if ready else "False"
        conditions = [{"type": kind, "status": truth} for kind in ("Ready", "ContainersReady")]
        conditions.append({"type": "PodScheduled", "status": "True"})
        return {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": conditions,
            "containerStatuses": [status],
        }

    def _write(self, status: Manifest) -> None:
        manifest = self.manifest()
        manifest["status"] = status
        self.api.call("PUT", PODS.path(self.namespace, self.name, "status"), manifest)


def make_pods(api: Api, engines: FakeEngines, namespace: str, deployment: str, count: int = 1) -> list[Pod]:
    """Make pods from a Deployment's template, on a node, owned by nobody."""
    template = api.get(DEPLOYMENTS, namespace, deployment)["spec"]["template"]
    return [make_pod(api, engines, namespace, template) for _ in range(count)]


def make_pod(api: Api, engines: FakeEngines, namespace: str, template: Manifest) -> Pod:
    """Make one pod from a template."""
    address = engines.new_address()
    spec = copy.deepcopy(template["spec"])
    spec["nodeName"] = "node0"
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{address.replace('.', '-')}",
            "namespace": namespace,
            "labels": template["metadata"]["labels"],
        },
        "spec": spec,
    }
    name = api.create(manifest)["metadata"]["name"]
    return Pod(api, namespace, name, address, engines.engine(address))
