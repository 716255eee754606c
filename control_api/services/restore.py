"""Puts a profile back to the settings that it had before an experiment."""

from http import HTTPStatus

import structlog
from pydantic import ValidationError

from paceline.bench.plan import ExperimentPlan
from paceline.control_api.context import AppContext
from paceline.control_api.db.tables import ExperimentRow
from paceline.control_api.errors import ProblemError
from paceline.control_api.models import runs
from paceline.control_api.profiles.base import Change, ProfileKey, in_force
from paceline.engine_ext.settings import LiveSettings

_log = structlog.get_logger(__name__)


async def restore(context: AppContext, row: ExperimentRow, wait_seconds: float) -> None:
    """Put the settings back that an ended experiment changed, and note that it is done.

    Where the profile no longer has the settings of an arm, somebody changed them since, and they stay. The change is
    kept even when the engine does not answer; the store then goes on trying. Where the store itself does not answer,
    the worker tries again.
    """
    if not row.restore_pending or row.settings_before is None:
        return
    key = ProfileKey(row.profile_namespace, row.profile_name)
    log = _log.bind(experiment=row.id, profile=str(key))
    try:
        before = LiveSettings.model_validate(row.settings_before)
        state = (await context.store.get(key)).state
        if _is_ours(state.settings, before, ExperimentPlan.model_validate(row.plan)):
            change = Change(
                pacing=before.pacing,
                coalescing=before.coalescing,
                if_match=state.etag,
                force=True,
                author=f"the end of experiment {row.id}",
            )
            state = await context.store.change(key, change, wait_seconds)
            log.info("settings_restored", applied=state.applied, revision=state.settings.revision)
        else:
            log.info("settings_left", reason="somebody changed them since", revision=state.settings.revision)
    except ValidationError as error:
        log.warning("settings_not_restored", reason=f"the experiment was stored by another version: {error}")
    except ProblemError as problem:
        if problem.status is HTTPStatus.NOT_FOUND:
            return  # deleted, or the profile of another store on the same database
        log.warning("settings_not_restored", reason=problem.detail)
        if problem.status is HTTPStatus.SERVICE_UNAVAILABLE:
            return
    async with context.database.write() as session:
        await runs.set_restored(session, row.id)


def _is_ours(present: LiveSettings, before: LiveSettings, plan: ExperimentPlan) -> bool:
    knobs = (in_force(present.pacing), present.coalescing)
    arms = [(in_force(arm.pacing), arm.coalescing) for arm in plan.arms]
    return present.epoch == before.epoch and knobs in arms
