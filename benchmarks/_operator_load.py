"""Profiles and pods by the thousand on a real API server, for the operator's benchmarks."""

import asyncio
import copy
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from _common import ROOT

from paceline.operator.api.v1alpha1 import API_VERSION, KIND
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.connection import connect
from paceline.operator.kube.resources import DEPLOYMENTS, PODS, PROFILES

IMPORTABLE = str(ROOT / "tests" / "cluster")
"""Folder of the test cluster's modules, for `sys.path`."""

Manifest = dict[str, Any]


@dataclass
class Load:
    """A client of the administrator's, and the names of the profiles that it made: (namespace, name)."""

    client: KubeClient
    profiles: list[tuple[str, str]]
    replicas: int

    async def make_profiles(self) -> None:
        """Create every profile."""
        await _many(self._make_profile(space, name) for space, name in self.profiles)

    async def make_pods(self, new_address: Callable[[], str]) -> None:
        """Create each profile's pods from its Deployment, as running and ready."""
        await _many(self._make_pods(space, name, new_address) for space, name in self.profiles)

    async def change_pacing(self, profile: tuple[str, str], interval: int) -> float:
        """Change a profile's interval; return the time at which the API server was asked."""
        asked = time.monotonic()
        body = {"spec": {"pacing": {"mode": "Fixed", "interval": interval}}}
        await self.client.merge(PROFILES, *profile, body, manager="benchmark")
        return asked

    async def statuses(self) -> list[Manifest]:
        """Return the statuses of all profiles."""
        page = await self.client.page(PROFILES, None, {})
        return [item.get("status", {}) for item in page["items"]]

    async def wait_for(self, done: Callable[[Manifest], bool], what: str, seconds: float = 1_800) -> None:
        """Wait until every profile's status is `done`."""
        deadline = time.monotonic() + seconds
        while True:
            statuses = await self.statuses()
            missing = sum(not done(status) for status in statuses)
            if not missing and len(statuses) == len(self.profiles):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{missing} profiles are not {what} after {seconds} s")
            await asyncio.sleep(0.5)

    async def _make_profile(self, space: str, name: str) -> None:
        spec = {
            "model": {"source": "hf://org/name"},
            "engine": {"accelerator": "CPU", "replicas": self.replicas},
            "pacing": {"mode": "Fixed", "interval": 4},
        }
        await self.client.create(_object(API_VERSION, KIND, space, name, spec=spec), manager="benchmark")

    async def _make_pods(self, space: str, name: str, new_address: Callable[[], str]) -> None:
        deployment = await self.client.get(DEPLOYMENTS, space, name)
        assert deployment is not None
        template = deployment["spec"]["template"]
        for index in range(self.replicas):
            spec = {**copy.deepcopy(template["spec"]), "nodeName": "node0"}
            pod = _object("v1", "Pod", space, f"{name}-{index}", spec=spec)
            pod["metadata"]["labels"] = template["metadata"]["labels"]
            made = await self.client.create(pod, manager="benchmark")
            made["status"] = _running(new_address())
            path = PODS.path(space, made["metadata"]["name"], "status")
            await self.client.call("PUT", path, body=made)


async def open_load(kubeconfig: Path, profiles: list[tuple[str, str]], replicas: int) -> Load:
    """Connect and create the namespaces."""
    client = KubeClient(await connect(kubeconfig), request_seconds=60)
    for space in sorted({space for space, _ in profiles}):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
        await client.call("POST", "/api/v1/namespaces", body=body)
    return Load(client, profiles, replicas)


@dataclass(frozen=True)
class Reading:
    """The operator's own numbers at one time."""

    at: float
    calls: dict[tuple[str, str, str], float]
    resident_mebibytes: float
    peak_mebibytes: float

    @property
    def total_calls(self) -> float:
        """Calls to the API server since the operator's start."""
        return sum(self.calls.values())


def read_operator(url: str, pid: int) -> Reading:
    """Read the operator's metrics and the memory of its process."""
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=30).text
    calls = {}
    for line in text.splitlines():
        if line.startswith("paceline_operator_api_calls_total{"):
            labels, value = line.rsplit(" ", 1)
            parts = dict(part.split("=") for part in labels[labels.index("{") + 1 : -1].split(","))
            calls[parts["verb"].strip('"'), parts["kind"].strip('"'), parts["status"].strip('"')] = float(value)
    memory = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")
    )
    resident, peak = (int(memory[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Reading(time.monotonic(), calls, resident, peak)


def choose(profiles: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """Return profiles by a fixed seed."""
    return random.Random(4).sample(profiles, min(count, len(profiles)))


async def _many(works: Iterable[Awaitable[None]], at_once: int = 32) -> None:
    limit = asyncio.Semaphore(at_once)

    async def one(work: Awaitable[None]) -> None:
        async with limit:
            await work

    await asyncio.gather(*(one(work) for work in works))


def _object(api_version: str, kind: str, space: str, name: str, **fields: Any) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": space}, **fields}


def _running(address: str) -> Manifest:
    container = {
        "name": "engine",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        "image": "engine:1",
        "imageID": "",
        "containerID": f"containerd://{address}",
    }
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions,
        "containerStatuses": [container],
    }
