"""A real Kubernetes on one Linux machine, for tests and for a developer.

Level 1, `ApiServer`: etcd and kube-apiserver, on demand the controllers and the scheduler. Needs no root.
Level 2, `Cluster`: level 1 with a node, that is containerd, kubelet, kube-proxy and CoreDNS. Needs root.
"""

from testbed.api_server import ApiServer
from testbed.cluster import Cluster
from testbed.waiting import PROBE, wait_until

__all__ = ["PROBE", "ApiServer", "Cluster", "wait_until"]
