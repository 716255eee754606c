"""A whole test cluster: the API server with its controllers, and one node."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from testbed.api_server import ApiServer
from testbed.folders import temporary_folder
from testbed.network import NodeNetwork
from testbed.node import Node


class Cluster:
    """One API server and one node, their data in `folder`; `start` and `stop` them. Needs root.

    `mounts`: paths below /var/lib on the node, and the machine's folders that are to be seen there, to read only.
    """

    def __init__(self, folder: Path, mounts: Mapping[str, Path], *, outlives_parent: bool = False) -> None:
        for name in ("api", "node"):
            (folder / name).mkdir()
        self.folder = folder
        self.node = Node(folder / "node", mounts, outlives_parent=outlives_parent)
        self._outlives_parent = outlives_parent
        self._server: ApiServer | None = None
        self._network: NodeNetwork | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, mounts: Mapping[str, Path]) -> Iterator["Cluster"]:
        """Have a started cluster within the block; nothing of it is left after it."""
        with temporary_folder() as folder:
            cluster = cls(folder, mounts)
            try:
                cluster.start()
                yield cluster
            finally:
                cluster.stop()

    @property
    def api(self) -> ApiServer:
        """The API server, once the cluster was started."""
        assert self._server is not None, "the cluster was not started"
        return self._server

    @property
    def network(self) -> NodeNetwork:
        """The addresses of pods, Services, node and machine, once the cluster was started."""
        assert self._network is not None, "the cluster was not started"
        return self._network

    def start(self) -> None:
        """Start everything and wait until the node is ready to run pods."""
        network = self._network = self.node.prepare()
        self._server = ApiServer(
            self.folder / "api",
            address=network.machine,
            service_cidr=network.services,
            outlives_parent=self._outlives_parent,
        )
        self._server.start()
        self._server.start_controller_manager()
        self._server.start_scheduler()
        self.node.join(self._server, network)

    def stop(self) -> None:
        """End everything and wait until it is gone."""
        self.node.stop()
        if self._server is not None:
            self._server.stop()

    def logs(self) -> str:
        """Return the end of each process's log."""
        return "\n".join([self._server.logs() if self._server is not None else "", self.node.logs()])

    def describe(self) -> str:
        """Return what kubectl says of all pods, the latest events, and the end of the pods' logs."""
        kubectl = self.api.kubectl
        pods = self.api.get("pods", "--all-namespaces")["items"]
        parts = [
            kubectl("get", "pods", "--all-namespaces", "-o", "wide", check=False).stdout,
            kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", check=False).stdout[-4_000:],
        ]
        for pod in pods:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            logs = kubectl("logs", name, "-n", namespace, "--all-containers", "--tail=30", check=False)
            parts.append(f"--- logs of {namespace}/{name} ---\n{logs.stdout}{logs.stderr}")
        return "\n".join(parts)
