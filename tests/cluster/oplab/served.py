"""The profile of examples/cpu-tiny.yaml on a real cluster, its engine a real one in a pod."""

import base64
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
START_SECONDS = 600
"""Longest time that an engine may take to start; a busy machine takes five times a quiet one's."""

Change = Callable[[dict[str, Any]], object]


@dataclass
class Served:
    """The profile of examples/cpu-tiny.yaml in the namespace `SPACE`."""

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

    def condition(self, kind: str) -> Any:
        """Return a condition, empty where it was never written."""
        found = [item for item in self.status().get("conditions", ()) if item["type"] == kind]
        return found[0] if found else {}

    def wait_ready(self, status: str = "True", seconds: float = START_SECONDS) -> None:
        wait_until(
            lambda: self.condition("Ready").get("status") == status,
            f"Ready={status}",
            seconds=seconds,
            details=lambda: f"{self.status()}\n{self.cluster.describe()}",
        )

    def pod(self) -> Any:
        """Return the profile's one pod."""
        pods = self.cluster.api.get("pods", "-n", SPACE, "-l", self.status()["selector"])["items"]
        assert len(pods) == 1, [pod["metadata"]["name"] for pod in pods]
        return pods[0]

    def identity(self) -> tuple[str, int]:
        """Return what changes when an engine is restarted or made anew: its pod's UID and the container's restarts."""
        pod = self.pod()
        return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]

    def patch(self, spec: dict[str, Any]) -> None:
        """Run `kubectl patch`."""
        body = json.dumps({"spec": spec})
        self.cluster.api.kubectl("patch", "ifp", NAME, "-n", SPACE, "--type=merge", "-p", body)

    @contextmanager
    def admin(self) -> Iterator["Admin"]:
        """Have a client of the pod's admin port within the block."""
        secret = self.cluster.api.get("secret", "paceline-admin-key", "-n", NAMESPACE)
        token = admin_token(base64.b64decode(secret["data"]["key"]), self.profile()["metadata"]["uid"])
        with httpx.Client(
            base_url=f"http://{self.pod()['status']['podIP']}:9000/paceline/v1",
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=30,
        ) as client:
            yield Admin(client)

    def settings(self) -> Any:
        """Ask the engine itself what it runs."""
        with self.admin() as admin:
            return admin.settings()

    def wait_interval(self, interval: int, seconds: float = 30) -> None:
        """Wait until the engine itself says that it paces by an interval."""
        wait_until(
            lambda: self.settings()["pacing"] == {"mode": "Fixed", "interval": interval},
            f"interval {interval}",
            seconds=seconds,
            details=lambda: str(self.status()),
        )

    def url(self) -> str:
        """Return the address of the profile's Service."""
        return f"http://{self.cluster.api.get('service', NAME, '-n', SPACE)['spec']['clusterIP']}"

    def complete(self) -> str:
        """Ask for four tokens through the Service; return why the completion ended."""
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{self.url()}/v1/completions", json=body, trust_env=False, timeout=120)
        answer.raise_for_status()
        assert answer.json()["usage"]["completion_tokens"] == 4
        return str(answer.json()["choices"][0]["finish_reason"])

    def timed_changes(self, intervals: Iterable[int], change: Change | None = None) -> list[float]:
        """Change the interval again and again, by `kubectl patch` unless `change` is another way to change the spec.

        Returns for each the seconds from the call to the engine's first answer that tells of a newer revision.
        """
        seconds = []
        with self.admin() as admin:
            for interval in intervals:
                before = admin.settings()["revision"]
                asked = time.monotonic()
                (change or self.patch)({"pacing": {"mode": "Fixed", "interval": interval}})
                seconds.append(admin.wait_newer(before) - asked)
                assert admin.settings()["pacing"] == {"mode": "Fixed", "interval": interval}
        return seconds


@dataclass
class Admin:
    """An engine's admin port."""

    client: httpx.Client

    def settings(self) -> Any:
        answer = self.client.get("/settings")
        answer.raise_for_status()
        return answer.json()["settings"]

    def wait_newer(self, revision: int, seconds: float = 60) -> float:
        """Ask until the engine runs a newer revision; return the time of its answer, as time.monotonic tells it."""
        deadline = time.monotonic() + seconds
        while True:
            running = self.settings()["revision"]
            now = time.monotonic()
            if running > revision:
                return now
            if now > deadline:
                raise TimeoutError(f"the engine still runs revision {running} after {seconds} s")


def p99(values: Iterable[float]) -> float:
    """Return the 99th percentile by the nearest rank: of fewer than 100 values, the greatest."""
    ordered = sorted(values)
    return ordered[math.ceil(0.99 * len(ordered)) - 1]
