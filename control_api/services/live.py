"""Changes of the live settings that a person asks for."""

import structlog

from paceline.control_api.context import AppContext
from paceline.control_api.errors import ProblemError, conflict
from paceline.control_api.models import runs
from paceline.control_api.profiles.base import Change, LiveState, ProfileKey

_log = structlog.get_logger(__name__)


async def change(context: AppContext, key: ProfileKey, wanted: Change, wait_seconds: float) -> LiveState:
    """Change a profile's pacing or coalescing and wait for its engines; count and log how it went.

    Raises:
        ProblemError: 409 while an experiment measures the profile; what the store raises.
    """
    metrics = context.metrics
    kind, counter = (
        ("pacing", metrics.pacing_changes) if wanted.coalescing is None else ("coalescing", metrics.coalescing_changes)
    )
    async with context.database.read() as session:
        running = await runs.running_on(session, (key.namespace, key.name))
    try:
        if running is not None:
            raise _measured(running.id, key)
        state = await context.store.change(key, wanted, wait_seconds)
    except ProblemError as problem:
        counter.labels("refused").inc()
        _log.info(f"{kind}_change", profile=str(key), result="refused", reason=problem.detail)
        raise
    result = "applied" if state.applied else "pending"
    counter.labels(result).inc()
    _log.info(
        f"{kind}_change",
        profile=str(key),
        result=result,
        revision=state.settings.revision,
        lagging=None if state.applied else state.lagging(),
        **{kind: getattr(state.settings, kind).model_dump(mode="json", by_alias=True)},
    )
    return state


def _measured(experiment_id: str, key: ProfileKey) -> ProblemError:
    detail = (
        f"the experiment {experiment_id} is measuring {key} and changes its live settings itself: wait for its end, or "
        f"stop it with `paceline experiment cancel {experiment_id}`, or POST /v1/experiments/{experiment_id}/cancel. "
        "Nothing was changed"
    )
    return conflict("experiment-running", detail, experiment=experiment_id)
