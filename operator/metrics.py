"""The operator's own metrics."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

RECONCILES: Final = Counter("paceline_operator_reconciles", "Passes over profiles, by their result", ["result"])
RECONCILE_SECONDS: Final = Histogram(
    "paceline_operator_reconcile_seconds",
    "Duration of a pass over a profile",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15),
)
API_CALLS: Final = Counter(
    "paceline_operator_api_calls", "Calls to the API server, by verb, kind and HTTP status", ["verb", "kind", "status"]
)
ENGINE_PUSHES: Final = Counter(
    "paceline_operator_engine_pushes", "Settings sent to engines, by whether the engine runs them", ["result"]
)
QUEUE_LENGTH: Final = Gauge("paceline_operator_queue_length", "Profiles that wait for a pass")
LEADER: Final = Gauge("paceline_operator_leader", "1 while this operator leads")
WATCH_SILENCE: Final = Gauge(
    "paceline_operator_watch_silence_seconds", "Seconds since a watch last gave a sign of life", ["kind", "namespace"]
)
CRD_OUTDATED: Final = Gauge("paceline_operator_crd_outdated", "1 where the cluster's CRD is not this operator's")
