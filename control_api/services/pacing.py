"""Changes of pacing that a person asks for."""

import structlog

from paceline.control_api.context import AppContext
from paceline.control_api.errors import ProblemError
from paceline.control_api.profiles.base import Change, LiveState, ProfileKey

_log = structlog.get_logger(__name__)


async def change(context: AppContext, key: ProfileKey, wanted: Change, wait_seconds: float) -> LiveState:
    """Change a profile's pacing and wait for its engines; count and log how it went.

    Raises:
        ProblemError: what the store raises.
    """
    try:
        state = await context.store.change(key, wanted, wait_seconds)
    except ProblemError as problem:
        context.metrics.pacing_changes.labels("refused").inc()
        _log.info("pacing_change", profile=str(key), result="refused", reason=problem.detail)
        raise
    result = "applied" if state.applied else "pending"
    context.metrics.pacing_changes.labels(result).inc()
    _log.info(
        "pacing_change",
        profile=str(key),
        result=result,
        pacing=state.settings.pacing.model_dump(mode="json", by_alias=True),
        revision=state.settings.revision,
        lagging=None if state.applied else state.lagging(),
    )
    return state
