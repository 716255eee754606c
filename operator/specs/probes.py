"""The probes of an engine's container, all on the admin port."""

from typing import Any, Final

from paceline.operator.specs.subject import Subject

STARTUP_PERIOD_SECONDS: Final = 5


def _get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "admin"}}


def engine_probes(subject: Subject) -> dict[str, Any]:
    """Return the three probes.

    Startup lasts as long as the profile lets the model load. Liveness fails when the scheduler makes no progress with
    work waiting; six failures, half a minute, since a compilation may hold a step up. Readiness comes only after the
    engine runs its live settings.
    """
    failures = -(-subject.spec.rollout.start_seconds // STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": {
            **_get("/healthz"),
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 3,
            "failureThreshold": failures,
        },
        "livenessProbe": {**_get("/healthz"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 6},
        "readinessProbe": {**_get("/readyz"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2},
    }
