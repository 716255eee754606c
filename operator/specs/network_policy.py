"""The NetworkPolicy of a profile's engines."""

from typing import Any

from paceline.operator.config import PodSelector
from paceline.operator.specs.subject import Manifest, Subject


def _peer(client: PodSelector) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": client.namespace}},
        "podSelector": {"matchLabels": client.labels},
    }


def network_policy(subject: Subject) -> Manifest:
    """Return a policy that opens the OpenAI API to all, and the admin port to the configured clients only.

    Engines of one profile reach each other on every port: those of a multi-node engine have to.
    """
    config = subject.config
    ingress: list[dict[str, Any]] = [{"ports": [{"port": config.serving_port, "protocol": "TCP"}]}]
    if config.admin_clients:
        ingress.append(
            {
                "from": [_peer(client) for client in config.admin_clients],
                "ports": [{"port": config.admin_port, "protocol": "TCP"}],
            }
        )
    if subject.spec.engine.parallelism.nodes > 1:
        ingress.append({"from": [{"podSelector": {"matchLabels": subject.selector}}]})
    return subject.manifest(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        subject.base,
        spec={"podSelector": {"matchLabels": subject.selector}, "policyTypes": ["Ingress"], "ingress": ingress},
    )
