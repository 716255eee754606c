"""A namespace with engines and an operator: what most of the operator's tests start from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from oplab.api import Api, Manifest
from oplab.engines import FakeEngines
from oplab.kubelet import Pod, make_pods
from oplab.operator import Access, RunningOperator, operator_config, running_operator
from paceline.operator.kube.resources import DEPLOYMENTS, PROFILES
from testbed import ApiServer, wait_until

CPU_SPEC: Manifest = {"model": {"source": "hf://org/name"}, "engine": {"accelerator": "CPU"}}


@dataclass
class Lab:
    """A test's namespace, and what acts in it."""

    server: ApiServer
    api: Api
    engines: FakeEngines
    space: str

    @contextmanager
    def operator(
        self, identity: str = "operator-0", client: Any = None, access: Access | None = None, **config: Any
    ) -> Iterator[RunningOperator]:
        """Have an operator for this namespace within the block; `access` leads to the API server in another way."""
        settings = operator_config(self.engines.port, [self.space], **config)
        with running_operator(access or self.server.kubeconfig, settings, identity, **(client or {})) as operator:
            yield operator

    def profile(self, name: str = "web", spec: Manifest | None = None, **parts: Manifest) -> Any:
        """Create a profile for CPU; `parts` are laid over its spec, one level deep."""
        base = spec or CPU_SPEC
        merged = {key: {**base.get(key, {}), **parts.get(key, {})} for key in {**base, **parts}}
        return self.api.profile(self.space, name, merged)

    def change(self, name: str, spec: Manifest) -> Any:
        """Merge a change into a profile's spec."""
        return self.api.merge(PROFILES, self.space, name, {"spec": spec})

    def status(self, name: str = "web") -> Any:
        return self.api.status(self.space, name)

    def condition(self, kind: str, name: str = "web") -> Any:
        """Return a condition, empty where it was never written."""
        found = [item for item in self.status(name).get("conditions", ()) if item["type"] == kind]
        return found[0] if found else {}

    def deployment(self, name: str = "web") -> Any:
        return self.api.get(DEPLOYMENTS, self.space, name)

    def wait_deployment(self, name: str = "web") -> Any:
        return wait_until(lambda: self.api.find(DEPLOYMENTS, self.space, name), f"Deployment {name} is there")

    def pods(self, count: int = 1, name: str = "web") -> list[Pod]:
        """Make pods from the Deployment's template."""
        return make_pods(self.api, self.engines, self.space, name, count)

    def serve(self, name: str = "web", count: int = 1, **parts: Manifest) -> list[Pod]:
        """Create a profile and bring its engines to Ready."""
        self.profile(name, **parts)
        self.wait_deployment(name)
        pods = self.pods(count, name)
        for pod in pods:
            pod.running(ready=True)
        self.wait_condition("Ready", "True", name=name)
        return pods

    def wait_condition(
        self, kind: str, status: str, *, reason: str | None = None, name: str = "web", seconds: float = 30
    ) -> Any:
        """Wait until a condition has a status, and a reason where one is given; return the condition."""

        def found() -> Any:
            condition = self.condition(kind, name)
            fits = condition.get("status") == status and reason in (None, condition.get("reason"))
            return condition if fits else None

        return wait_until(
            found, f"{kind}={status} {reason or ''}", seconds=seconds, details=lambda: str(self.status(name))
        )

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 30) -> Any:
        return wait_until(condition, what, seconds=seconds, details=self._state)

    def _state(self) -> str:
        return "\n".join(str(profile.get("status")) for profile in self.api.list(PROFILES, self.space))
