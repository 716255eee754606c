"""The control API's Prometheus metrics, one registry an app so that several apps fit in one process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """What the control API counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "paceline_api_requests_total",
            "Requests answered, by method, route template and status",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "paceline_api_request_duration_seconds",
            "Time from a request's arrival to the end of its answer; event streams are left out",
            ("method", "route"),
            registry=self.registry,
        )
        self.pacing_changes = Counter(
            "paceline_api_pacing_changes_total",
            "Pacing changes asked for, by result: applied, pending, refused",
            ("result",),
            registry=self.registry,
        )
        self.coalescing_changes = Counter(
            "paceline_api_coalescing_changes_total",
            "Coalescing changes asked for, by result: applied, pending, refused",
            ("result",),
            registry=self.registry,
        )
        self.engine_pushes = Counter(
            "paceline_api_engine_pushes_total",
            "Settings sent to engines, by result: applied, unreachable, refused, stale",
            ("result",),
            registry=self.registry,
        )
        self.experiments_finished = Counter(
            "paceline_api_experiments_finished_total",
            "Experiments ended, by status",
            ("status",),
            registry=self.registry,
        )
        self.event_streams = Gauge(
            "paceline_api_event_streams", "Event streams that are open now", registry=self.registry
        )
