"""The profile of examples/cpu-tiny.yaml on a real cluster, its engine a real one in a pod."""

import base64
import json
from dataclasses import dataclass
from typing import Any

import httpx

from paceline.operator.specs.admin_token import admin_token
from testbed import Cluster, wait_until
from testbed.commands import ROOT
from testbed.paceline import NAMESPACE

EXAMPLE = ROOT / "examples" / "cpu-tiny.yaml"
SPACE = "default"
NAME = "cpu-tiny"
START_SECONDS = 900


@dataclass
class Served:
    """The profile of examples/cpu-tiny.yaml, its engine ready."""

    cluster: Cluster

    @classmethod
    def apply(cls, cluster: Cluster) -> "Served":
        """Apply the example as a user would, and wait until its engine is ready."""
        cluster.api.kubectl("apply", "-n", SPACE, "-f", EXAMPLE)
        served = cls(cluster)
        served.wait_ready()
        return served

    def profile(self) -> Any:
        return self.cluster.api.get("ifp", NAME, "-n", SPACE)

    def status(self) -> Any:
        return self.profile().get("status", {})

    def ready(self) -> Any:
        found = [item for item in self.status().get("conditions", ()) if item["type"] == "Ready"]
        return found[0] if found else {}

    def is_ready(self) -> bool:
        return bool(self.ready().get("status") == "True")

    def wait_ready(self, status: str = "True", seconds: float = START_SECONDS) -> None:
        wait_until(
            lambda: self.ready().get("status") == status,
            f"Ready={status}",
            seconds=seconds,
            details=lambda: f"{self.status()}\n{self.cluster.describe()}",
        )

    def pod(self) -> Any:
        (pod,) = self.cluster.api.get("pods", "-n", SPACE, "-l", self.status()["selector"])["items"]
        return pod

    def identity(self) -> tuple[str, int]:
        """Return what changes when an engine is restarted or made anew."""
        pod = self.pod()
        return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]

    def patch(self, spec: dict[str, Any]) -> None:
        body = json.dumps({"spec": spec})
        self.cluster.api.kubectl("patch", "ifp", NAME, "-n", SPACE, "--type=merge", "-p", body)

    def admin_access(self) -> tuple[str, str]:
        """Return the address of the engine's live settings, and the token for it."""
        secret = self.cluster.api.get("secret", "paceline-admin-key", "-n", NAMESPACE)
        token = admin_token(base64.b64decode(secret["data"]["key"]), self.profile()["metadata"]["uid"])
        return f"http://{self.pod()['status']['podIP']}:9000/paceline/v1/settings", token

    def engine_settings(self) -> Any:
        """Ask the engine itself what it runs."""
        url, token = self.admin_access()
        answer = httpx.get(url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=30)
        answer.raise_for_status()
        return answer.json()["settings"]

    def service_address(self) -> str:
        """Return the address of the profile's Service."""
        return str(self.cluster.api.get("service", NAME, "-n", SPACE)["spec"]["clusterIP"])

    def wait_interval(self, interval: int, seconds: float = 30) -> None:
        """Wait until the engine itself says that it paces by an interval."""
        wait_until(
            lambda: self.engine_settings()["pacing"] == {"mode": "Fixed", "interval": interval},
            f"interval {interval}",
            seconds=seconds,
            details=lambda: str(self.status()),
        )

    def complete(self) -> str:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"http://{self.service_address()}/v1/completions", json=body, trust_env=False, timeout=120)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["finish_reason"])
