"""The PodMonitor of a profile's engines, for clusters with the Prometheus operator."""

from paceline.operator.specs.subject import Manifest, Subject


def pod_monitor(subject: Subject) -> Manifest:
    """Return a PodMonitor that scrapes vLLM's own metrics, ours among them, from the serving port."""
    return subject.manifest(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        subject.base,
        spec={
            "selector": {"matchLabels": subject.selector},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        },
    )
