"""The Services of a profile: one for requests, and one without an address that names each engine's admin port."""

from paceline.operator.specs.names import ROLE_LABEL
from paceline.operator.specs.subject import Manifest, Subject


def _selector(subject: Subject) -> dict[str, str]:
    # Of a multi-node engine only the leader answers.
    leader = {ROLE_LABEL: "leader"} if subject.spec.engine.parallelism.nodes > 1 else {}
    return {**subject.selector, **leader}


def serving_service(subject: Subject) -> Manifest:
    """Return the Service of the OpenAI API: port 80, ready engines only."""
    return subject.manifest(
        "v1",
        "Service",
        subject.base,
        spec={
            "type": "ClusterIP",
            "selector": _selector(subject),
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
    )


def admin_service(subject: Subject) -> Manifest:
    """Return the headless Service of the admin port: every engine, also those that are not ready."""
    return subject.manifest(
        "v1",
        "Service",
        f"{subject.base}-admin",
        spec={
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(subject),
            "ports": [
                {
                    "name": "admin",
                    "port": subject.config.admin_port,
                    "targetPort": "admin",
                    "protocol": "TCP",
                }
            ],
        },
    )
