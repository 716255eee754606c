"""A profile's status as the operator writes it."""

from collections.abc import Mapping

from oplab import Api

from paceline.operator.kube.resources import PROFILES


def write_status(api: Api, namespace: str, name: str, revision: int, pods: Mapping[str, int]) -> None:
    """Write that the operator has seen the profile as it is, as this revision; `pods` are those that each runs."""
    generation = api.get(PROFILES, namespace, name)["metadata"]["generation"]
    status = {
        "observedGeneration": generation,
        "epoch": 1,
        "revision": revision,
        "pods": [
            {"name": pod, "applied": str(runs == revision), "epoch": 1, "revision": runs, "message": ""}
            for pod, runs in pods.items()
        ],
    }
    api.merge(PROFILES, namespace, name, {"status": status}, subresource="status")
