"""The testbed's level 2 is what the other tests take it for: a node on which pods run, reach and are reached."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed import Cluster, wait_until
from testbed.paceline import Images

LIST_OWN = """
import json, os, ssl, sys, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
token = open(folder + "token").read()
tls = ssl.create_default_context(cafile=folder + "ca.crt")
for host in ("kubernetes.default.svc", os.environ["KUBERNETES_SERVICE_HOST"]):
    url = f"https://{host}/api/v1/namespaces/default/configmaps"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
    print(host, [item["metadata"]["name"] for item in json.load(urllib.request.urlopen(request, context=tls))["items"]])
"""


def pod(name: str, image: str, *command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": list(command), "imagePullPolicy": "Never"}
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    rest = {"terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **rest}}


def wait_for_phase(cluster: Cluster, name: str, phase: str) -> None:
    wait_until(
        lambda: cluster.api.get("pod", name)["status"].get("phase") == phase,
        f"pod {name} {phase}",
        seconds=60,
        details=cluster.describe,
    )


def test_a_pod_lists_objects_by_its_own_token_by_name_and_by_address(cluster: Cluster, images: Images) -> None:
    cluster.api.kubectl("create", "role", "lister", "--verb=list", "--resource=configmaps")
    cluster.api.kubectl("create", "rolebinding", "lister", "--role=lister", "--serviceaccount=default:default")
    command = ("python3", "-c", LIST_OWN)
    cluster.api.apply(pod("lister", images.control_plane.reference, *command, restartPolicy="Never"))
    wait_for_phase(cluster, "lister", "Succeeded")
    lines = cluster.api.kubectl("logs", "lister").stdout.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["['kube-root-ca.crt']"] * 2


def test_a_service_is_reached_from_the_machine_and_from_a_pod_by_its_name(cluster: Cluster, images: Images) -> None:
    server = ("python3", "-m", "http.server", "8080", "--directory", "/usr/local/bin")
    cluster.api.apply(pod("web", images.control_plane.reference, *server))
    cluster.api.kubectl("expose", "pod", "web", "--port=80", "--target-port=8080")
    cluster.api.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    address = cluster.api.get("service", "web")["spec"]["clusterIP"]

    def answer() -> bool:
        with httpx.Client(trust_env=False, timeout=2) as client:
            try:
                return "python3" in client.get(f"http://{address}/").text
            except httpx.TransportError:
                return False

    wait_until(answer, "the Service answers on this machine", details=cluster.logs)
    read = "import urllib.request; print(urllib.request.urlopen('http://web.default/', timeout=10).status)"
    # The pod reaches itself by the Service: the hardest way round.
    assert cluster.api.kubectl("exec", "web", "--", "python3", "-c", read).stdout == "200\n"
    lookup = "import socket; socket.gethostbyname('no.such.name.example')"
    failed = cluster.api.kubectl("exec", "web", "--", "python3", "-c", lookup, check=False)
    assert "Name or service not known" in failed.stderr


def test_the_node_sees_the_folders_it_was_given_and_can_not_write_there(cluster: Cluster, images: Images) -> None:
    volume = {"name": "models", "hostPath": {"path": "/var/lib/paceline/models", "type": "Directory"}}
    with_volume = pod("reader", images.control_plane.reference, "sh", "-c", "ls /models/tiny; touch /models/tiny/x")
    with_volume["spec"] |= {"volumes": [volume], "restartPolicy": "Never"}
    with_volume["spec"]["containers"][0] |= {
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "securityContext": {"runAsUser": 0},
    }
    cluster.api.apply(with_volume)
    wait_for_phase(cluster, "reader", "Failed")
    logs = cluster.api.kubectl("logs", "reader").stdout
    assert "config.json" in logs
    assert "Read-only file system" in logs


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_of_a_cluster_is_left_however_its_program_ends(
    tmp_path_factory: pytest.TempPathFactory, end: signal.Signals
) -> None:
    program = f"""
        import json, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from testbed import Cluster
        # Programs that a shell starts in the background inherit a SIGINT that is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with Cluster.running({{}}) as cluster:
            network = cluster.network
            pids = [process.pid for process in cluster.node.processes + cluster.api.processes]
            print(json.dumps([str(cluster.folder), network.link, cluster.node.sandbox.cgroup, pids]), flush=True)
            sys.stdin.read()
    """
    # A short path: it holds sockets.
    environment = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("t"))}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert running.stdout is not None
        folder, link, cgroup, pids = json.loads(running.stdout.readline())
        running.send_signal(end)
        running.wait(60)
    wait_until(
        lambda: (
            not any(Path(f"/proc/{pid}/exe").exists() for pid in pids) and not Path(f"/sys/class/net/{link}").exists()
        ),
        "processes and network link are gone",
    )
    mounts = Path("/proc/self/mounts").read_text()
    assert folder not in mounts
    if end == signal.SIGKILL:
        # Files can't remove themselves: the next cluster to start does it.
        sweep = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
        sweep += "from testbed.folders import remove_abandoned; remove_abandoned()"
        subprocess.run([sys.executable, "-c", sweep], env=environment, check=True)
    assert not Path(folder).exists()
    assert list(Path("/sys/fs/cgroup").glob(f"**/{cgroup}")) == []
