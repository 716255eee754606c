"""The control API as the chart starts it: its own process, the chart's environment and the chart's ServiceAccount."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from testbed import PROBE, ApiServer, wait_until
from testbed.commands import ROOT, kubernetes_command
from testbed.ports import free_ports

RBAC = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
RELEASE_SPACE = "control-api"


@dataclass(frozen=True)
class ControlApi:
    """A running control API; `user` is its own name in the cluster."""

    url: str
    user: str
    log: Path

    def client(self, token: str | None) -> httpx.Client:
        """Return a client that sends a token, or none."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60)

    @classmethod
    @contextmanager
    def running(cls, server: ApiServer, folder: Path, key: bytes) -> Iterator["ControlApi"]:
        """Have one on SQLite within the block, with the operator's key in a file."""
        objects = _chart_objects()
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RELEASE_SPACE}}
        server.apply(namespace)
        server.apply(*(item for item in objects if item["kind"] in RBAC))
        (deployment,) = (
            item for item in objects if item["kind"] == "Deployment" and "-api" in item["metadata"]["name"]
        )
        pod = deployment["spec"]["template"]["spec"]
        token = server.token_for(RELEASE_SPACE, pod["serviceAccountName"])
        (folder / "key").write_bytes(key)
        (port,) = free_ports(1)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        container = pod["containers"][0]
        environment = kept | {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        environment |= {
            "PACELINE_API_PORT": str(port),
            "PACELINE_API_DATABASE_URL": f"sqlite:///{folder / 'paceline.db'}",
            "PACELINE_API_ADMIN_KEY_FILE": str(folder / "key"),
            "PACELINE_API_KUBECONFIG": str(server.kubeconfig_for(token, path=folder / "kubeconfig")),
        }
        log = folder / "log"
        api = cls(f"http://127.0.0.1:{port}", f"system:serviceaccount:{RELEASE_SPACE}:{pod['serviceAccountName']}", log)
        command = [sys.executable, *container["command"][1:]]
        with (
            log.open("ab") as output,
            subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process,
        ):
            try:
                wait_until(lambda: api._is_ready(process), "the control API is ready", seconds=120)
                yield api
            finally:
                process.terminate()
                process.wait(30)

    def _is_ready(self, process: "subprocess.Popen[bytes]") -> bool:
        assert process.poll() is None, f"the control API ended:\n{self.log.read_text()}"
        try:
            return PROBE.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False


def _chart_objects() -> list[dict[str, Any]]:
    values = json.dumps({"crds": {"enabled": False}, "aggregateRoles": False})
    command = [kubernetes_command("helm"), "template", "paceline", ROOT / "charts" / "paceline", "-f", "-"]
    done = subprocess.run(
        [*command, "--namespace", RELEASE_SPACE], input=values, capture_output=True, text=True, check=True
    )
    return [item for item in yaml.safe_load_all(done.stdout) if item]
