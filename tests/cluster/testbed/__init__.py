"""A real Kubernetes on one Linux machine, for tests and for a developer.

Level 1, `ApiServer`: etcd and kube-apiserver, on demand the controllers and the scheduler. Needs no root.
"""

from testbed.api_server import ApiServer
from testbed.waiting import wait_until

__all__ = ["ApiServer", "wait_until"]
