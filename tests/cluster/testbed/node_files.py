"""The configuration files of a node's daemons."""

import json
from pathlib import Path
from typing import Any

from testbed.network import NodeNetwork

NODE_NAME = "node0"
CLUSTER_DOMAIN = "cluster.local"
PAUSE_IMAGE = "paceline.local/pause:1"
CNI_BINARIES = "/usr/lib/cni"


def containerd_config(folder: Path) -> str:
    """Return containerd's configuration, all its data below `folder`."""
    return f"""
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  # A machine without CAP_SYS_RESOURCE can't lower a score below its own: sandboxes would die.
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_BINARIES}"
    conf_dir = "{folder}/cni"
"""


def cni_config(network: NodeNetwork) -> dict[str, Any]:
    """Return the network plugin's configuration: one point-to-point link a pod, everything routed by the node.

    No bridge: answers that cross one without passing the node's rules would miss the way back through a Service.
    """
    ranges = [[{"subnet": network.pods}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}, portmap]}


def kubelet_config(folder: Path, network: NodeNetwork, cgroup: str, client_ca: Path) -> dict[str, Any]:
    """Return kubelet's configuration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [network.node],
        "resolvConf": str(folder / "resolv.conf"),
        # The machine's disk is not the node's to tidy up.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    }


def dns_config(kubeconfig: Path, network: NodeNetwork) -> str:
    """Return CoreDNS's configuration: the cluster's names, and a quick no to every other."""
    return f"""
{CLUSTER_DOMAIN}:53 {{
    bind {network.node}
    errors
    ready 127.0.0.1:8181
    kubernetes {CLUSTER_DOMAIN} {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
.:53 {{
    bind {network.node}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def write_json(path: Path, document: dict[str, Any]) -> Path:
    """Write a document, and return its path."""
    path.write_text(json.dumps(document, indent=1))
    return path
