"""The PodDisruptionBudget of a profile's engines."""

from paceline.operator.specs.subject import Manifest, Subject


def disruption_budget(subject: Subject) -> Manifest:
    """Return a budget that lets one engine go at a time, so that a node can always be drained."""
    return subject.manifest(
        "policy/v1",
        "PodDisruptionBudget",
        subject.base,
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": subject.selector},
        },
    )
