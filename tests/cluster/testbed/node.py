"""Level 2 of the test cluster: a node on which pods really run."""

from collections.abc import Mapping
from pathlib import Path

from testbed import node_files
from testbed.api_server import ApiServer
from testbed.commands import kubernetes_command, run
from testbed.network import NodeNetwork, connect
from testbed.pause_image import pause_image
from testbed.processes import Process
from testbed.sandbox import Sandbox
from testbed.waiting import wait_until


class Node:
    """containerd, kubelet, kube-proxy and CoreDNS in namespaces of their own. Needs root.

    `prepare` makes the node's network, which the API server's address belongs to; `join` then starts the daemons.
    """

    def __init__(self, folder: Path, mounts: Mapping[str, Path], *, outlives_parent: bool = False) -> None:
        self.folder = folder
        self.sandbox = Sandbox(folder, kubernetes_command("pause"), mounts, outlives_parent=outlives_parent)
        self.processes = [self.sandbox.process]
        self._outlives_parent = outlives_parent

    def prepare(self) -> NodeNetwork:
        """Make the node's namespaces and its network, and return the addresses."""
        (self.folder / "resolv.conf").touch()
        self.sandbox.start()
        network = connect(self.sandbox.pid)
        (self.folder / "resolv.conf").write_text(f"nameserver {network.node}\n")
        return network

    def join(self, server: ApiServer, network: NodeNetwork) -> None:
        """Start the node's daemons and wait until the API server calls the node ready."""
        self._start_containerd(network)
        self.import_image(pause_image(self.folder))
        self._start_dns(server, network)
        self._start_kubelet(server, network)
        self._start_proxy(server, network)
        wait_until(
            lambda: (
                "True" in server.kubectl("get", "nodes", "-o", "jsonpath={..conditions[?(@.type=='Ready')]}").stdout
            ),
            "the node is ready",
            seconds=60,
            details=self.logs,
        )

    def import_image(self, archive: Path) -> None:
        """Load the images of a docker archive into the node's containerd."""
        self.ctr("images", "import", archive)

    def ctr(self, *arguments: object) -> str:
        """Run containerd's own client on kubelet's namespace, and return what it prints."""
        command = ("ctr", "--address", self.folder / "containerd.sock", "--namespace", "k8s.io", *arguments)
        return self.sandbox.run(*command, seconds=300).stdout

    def stop(self) -> None:
        """End the daemons and all containers; mounts, network and firewall rules go with them."""
        self.sandbox.stop()
        for process in self.processes:
            process.kill()

    def logs(self) -> str:
        """Return the end of each daemon's log."""
        return "\n".join(process.log_tail() for process in self.processes)

    def _start_containerd(self, network: NodeNetwork) -> None:
        (self.folder / "cni").mkdir()
        node_files.write_json(self.folder / "cni" / "pods.conflist", node_files.cni_config(network))
        config = self.folder / "containerd.toml"
        config.write_text(node_files.containerd_config(self.folder))
        process = self._daemon("containerd", "containerd", f"--config={config}")
        ctr = self.sandbox.inside("ctr", "--address", self.folder / "containerd.sock", "version")
        process.wait_ready(lambda: run(ctr, check=False).status == 0, seconds=30)

    def _start_dns(self, server: ApiServer, network: NodeNetwork) -> None:
        kubeconfig = server.kubeconfig_for(server.identities.tokens["dns"], path=self.folder / "dns.kubeconfig")
        reads = {"apiGroups": ["", "discovery.k8s.io"], "resources": ["services", "namespaces", "endpointslices"]}
        api = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "testbed:dns"}}
        role = {**api, "kind": "ClusterRole", "rules": [{**reads, "verbs": ["list", "watch"]}]}
        subject = {"kind": "User", "name": "testbed:dns", "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "ClusterRole", "name": "testbed:dns", "apiGroup": "rbac.authorization.k8s.io"}
        server.apply(role, {**api, "kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": reference})
        corefile = self.folder / "Corefile"
        corefile.write_text(node_files.dns_config(kubeconfig, network))
        self._daemon("coredns", kubernetes_command("coredns"), "-conf", corefile)

    def _start_kubelet(self, server: ApiServer, network: NodeNetwork) -> None:
        kubeconfig = server.kubeconfig_for(server.identities.tokens["node"], path=self.folder / "node.kubeconfig")
        client_ca = server.identities.kubelet_client_certificate
        config = node_files.kubelet_config(self.folder, network, self.sandbox.cgroup, client_ca)
        self._daemon(
            "kubelet",
            kubernetes_command("kubelet"),
            f"--config={node_files.write_json(self.folder / 'kubelet.json', config)}",
            f"--kubeconfig={kubeconfig}",
            f"--node-ip={network.node}",
            f"--hostname-override={node_files.NODE_NAME}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-certificates'}",
        )

    def _start_proxy(self, server: ApiServer, network: NodeNetwork) -> None:
        kubeconfig = server.kubeconfig_for(server.identities.tokens["proxy"], path=self.folder / "proxy.kubeconfig")
        self._daemon(
            "kube-proxy",
            kubernetes_command("kube-proxy"),
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node_files.NODE_NAME}",
            f"--cluster-cidr={network.pods}",
            "--proxy-mode=iptables",
            # These would be settings of the whole machine.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def _daemon(self, name: str, *command: object) -> Process:
        argv = self.sandbox.inside(*command)
        process = Process(name, argv, self.folder / f"{name}.log", outlives_parent=self._outlives_parent)
        self.processes.append(process)
        process.start()
        return process
