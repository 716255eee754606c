"""Level 1 of the test cluster: etcd and kube-apiserver, and the controllers on demand."""

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testbed.commands import Answer, kubernetes_command, run
from testbed.folders import temporary_folder
from testbed.identities import Identities
from testbed.kubeconfig import write_kubeconfig
from testbed.ports import free_ports
from testbed.processes import Process

SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ApiServer:
    """etcd and kube-apiserver with their data in `folder`; `start` them, and `stop` them in the end.

    `kubeconfig` names a file for the administrator; `kubectl` runs the matching command with it. Every request is
    written to the audit log (`audit_events`), so a test can count calls or find those that were forbidden.
    """

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        service_cidr: str = "10.96.0.0/24",
        outlives_parent: bool = False,
    ) -> None:
        self.folder = folder
        self.address = address
        self.service_cidr = service_cidr
        self.port, self._etcd_port, self._etcd_peer_port = free_ports(3)
        self.url = f"https://{address}:{self.port}"
        self.ca_file = folder / "certificates" / "apiserver.crt"
        self.kubeconfig = folder / "kubeconfig"
        self.audit_log = folder / "audit.jsonl"
        self.identities = Identities.make(folder)
        self.outlives_parent = outlives_parent
        self.processes: list[Process] = []
        self._etcd = self._process("etcd", self._etcd_flags())
        self._server = self._process("kube-apiserver", self._server_flags())
        self._controllers: dict[str, Process] = {}

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator["ApiServer"]:
        """Have a started API server, with data of its own, within the block; nothing of it is left after it."""
        with temporary_folder() as folder:
            server = cls(folder)
            try:
                server.start()
                yield server
            finally:
                server.stop()

    def start(self) -> None:
        """Start etcd and the API server and wait until both are ready. Raises ProcessDiedError, DeadlineError."""
        self._etcd.start()
        etcd_ready = f"http://127.0.0.1:{self._etcd_port}/readyz"
        self._etcd.wait_ready(lambda: _answers_ok(etcd_ready), seconds=30)
        self._server.start()
        self.wait_ready()
        self.kubeconfig_for(self.identities.tokens["admin"], path=self.kubeconfig)

    def wait_ready(self, seconds: float = 90) -> None:
        """Wait until the API server says that it is ready."""
        token = self.identities.tokens["admin"]
        self._server.wait_ready(lambda: _answers_ok(f"{self.url}/readyz", self.ca_file, token), seconds=seconds)

    def stop(self) -> None:
        """End everything that was started here; the data stay in the folder."""
        # Killed, not asked: the data are thrown away, and an API server with open watches takes long to end.
        for process in reversed(self.processes):
            process.kill()

    def start_controller_manager(self, *controllers: str) -> None:
        """Start the controller manager once, with all controllers or those named as its `--controllers` flag does.

        Without it no Deployment gets pods, nothing is garbage-collected, and no namespace gets its service account.
        """
        names = ",".join(controllers) or "*"
        flags = (
            f"--controllers={names}",
            f"--service-account-private-key-file={self.identities.service_account_key}",
            f"--root-ca-file={self.ca_file}",
            "--use-service-account-credentials",
        )
        self._start_controller("kube-controller-manager", "controller-manager", flags)

    def start_scheduler(self) -> None:
        """Start the scheduler once."""
        self._start_controller("kube-scheduler", "scheduler", ())

    def restart(self) -> None:
        """Restart the API server on its port and wait until it is ready; etcd keeps its data."""
        self.take_away()
        self.bring_back()

    def take_away(self) -> None:
        """End the API server: its address refuses connections."""
        self._server.kill()

    def bring_back(self) -> None:
        """Start the API server again after `take_away`."""
        self._server.start()
        self.wait_ready()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Have no API server within the block; it is ready again after it."""
        self.take_away()
        try:
            yield
        finally:
            self.bring_back()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Have an API server that keeps its connections and answers nothing within the block."""
        self._server.pause()
        try:
            yield
        finally:
            self._server.resume()
            self.wait_ready()

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, seconds: float = 120) -> Answer:
        """Run kubectl as the administrator. Raises CommandError when it fails and `check` is set."""
        command = [kubernetes_command("kubectl"), "--kubeconfig", self.kubeconfig, *arguments]
        return run(command, stdin=stdin, environment={"NO_PROXY": "*"}, check=check, seconds=seconds)

    def get(self, *arguments: str) -> Any:
        """Return what `kubectl get ARGUMENTS` finds: an object, or a list object, as parsed JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects, or create them, as the administrator."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def token_for(self, namespace: str, service_account: str, *, seconds: int = 3600) -> str:
        """Return a new token of a service account."""
        arguments = ("create", "token", service_account, "-n", namespace, f"--duration={seconds}s")
        return self.kubectl(*arguments).stdout.strip()

    def kubeconfig_for(self, token: str, *, path: Path, namespace: str = "default") -> Path:
        """Write a kubeconfig for the bearer of a token to `path`, and return it."""
        return write_kubeconfig(path, server=self.url, ca_file=self.ca_file, token=token, namespace=namespace)

    def audit_events(self, user: str = "") -> list[dict[str, Any]]:
        """Return the audit events so far of the requests that `user` made, or of everyone's."""
        with self.audit_log.open() as lines:
            # The last line may be half written.
            events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if user in ("", event["user"].get("username"))]

    def logs(self) -> str:
        """Return the end of each process's log."""
        return "\n".join(process.log_tail() for process in self.processes)

    def _start_controller(self, command: str, identity: str, flags: Sequence[str]) -> None:
        if command in self._controllers:
            return
        kubeconfig = self.folder / f"{identity}.kubeconfig"
        self.kubeconfig_for(self.identities.tokens[identity], path=kubeconfig)
        (port,) = free_ports(1)
        process = self._process(
            command,
            (
                f"--kubeconfig={kubeconfig}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={self.folder / identity}",
                *flags,
            ),
        )
        self._controllers[command] = process
        process.start()
        process.wait_ready(
            lambda: _answers_ok(f"https://127.0.0.1:{port}/healthz", self.folder / identity / f"{command}.crt"),
            seconds=60,
        )

    def _process(self, command: str, flags: Sequence[str]) -> Process:
        argv = [kubernetes_command(command), *flags]
        process = Process(command, argv, self.folder / f"{command}.log", outlives_parent=self.outlives_parent)
        self.processes.append(process)
        return process

    def _etcd_flags(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._etcd_peer_port))
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _server_flags(self) -> list[str]:
        audit_policy = self.folder / "audit-policy.json"
        audit_policy.write_text(json.dumps(AUDIT_POLICY))
        key = self.identities.service_account_key
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--cert-dir={self.ca_file.parent}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            # The Service `kubernetes` can't lead to a loopback address; without pods nobody misses it.
            f"--endpoint-reconciler-type={'none' if self.address.startswith('127.') else 'lease'}",
            f"--service-cluster-ip-range={self.service_cidr}",
            f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.identities.token_file}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            # The node's name is in no DNS: logs and exec go to its address.
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.identities.kubelet_client_certificate}",
            f"--kubelet-client-key={self.identities.kubelet_client_key}",
            f"--audit-policy-file={audit_policy}",
            f"--audit-log-path={self.audit_log}",
        ]


def _answers_ok(url: str, ca_file: Path | None = None, token: str | None = None) -> bool:
    if ca_file is not None and not ca_file.exists():
        return False
    # No proxy: the address is on this machine.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if ca_file is not None:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        # Not there yet, or not ready: the caller asks again.
        return False
