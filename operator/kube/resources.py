"""The kinds of objects that the operator handles, and their paths at the API server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from paceline.operator.api.v1alpha1 import API_VERSION, KIND, PLURAL
from paceline.operator.specs.workload import LWS_API_VERSION


@dataclass(frozen=True)
class Resource:
    """A kind of object."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of an object, or of the whole collection in a namespace or the cluster."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        scope = [] if namespace is None else ["namespaces", namespace]
        return "/".join([root, *scope, self.plural, *filter(None, (name, subresource))])


PROFILES: Final = Resource(API_VERSION, KIND, PLURAL)
PODS: Final = Resource("v1", "Pod", "pods")
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
SECRETS: Final = Resource("v1", "Secret", "secrets")
SERVICES: Final = Resource("v1", "Service", "services")
SERVICE_ACCOUNTS: Final = Resource("v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
WORKER_SETS: Final = Resource(LWS_API_VERSION, "LeaderWorkerSet", "leaderworkersets")
DISRUPTION_BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_MONITORS: Final = Resource("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")
CRDS: Final = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")

OWNED: Final = (
    CONFIG_MAPS,
    SERVICES,
    SERVICE_ACCOUNTS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
)
"""Kinds that are made for every profile, in every cluster, and that the operator may read."""

_BY_KIND: Final[Mapping[str, Resource]] = {
    resource.kind: resource for resource in (*OWNED, PROFILES, PODS, SECRETS, WORKER_SETS, POD_MONITORS, LEASES, EVENTS)
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Return the kind of a manifest that one of our builders made."""
    return _BY_KIND[manifest["kind"]]
