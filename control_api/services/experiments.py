"""Experiments as people handle them: asked for, listed, read, cancelled."""

import hashlib
import json
import secrets
from http import HTTPStatus

from paceline.bench.capacity import capacity_problems
from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import EngineFingerprint
from paceline.control_api.context import AppContext
from paceline.control_api.db.tables import ExperimentRow
from paceline.control_api.db.types import utc_now
from paceline.control_api.errors import FieldError, ProblemError, not_found
from paceline.control_api.models import experiments, records, runs
from paceline.control_api.profiles.base import ProfileKey
from paceline.control_api.schemas.experiments import (
    ArmDetail,
    ExperimentDetail,
    ExperimentStatus,
    ExperimentSummary,
)
from paceline.control_api.services.views import summary
from paceline.operator.api.v1alpha1 import InferenceProfile


async def create(
    context: AppContext, plan: ExperimentPlan, idempotency_key: str | None
) -> tuple[ExperimentSummary, bool]:
    """Queue an experiment and return it, with whether it is new.

    A repeated idempotency key returns the experiment that the first request made.

    Raises:
        ProblemError: 422 for a profile that is not there, a plan that does not fit its engine, or a key that was used
            with another plan; 503 when no engine of the profile answers.
    """
    digest = _digest(plan)
    if idempotency_key is not None:
        async with context.database.read() as session:
            earlier = await experiments.by_key(session, idempotency_key)
        if earlier is not None:
            return _replay(earlier, digest), False
    key = await _profile_key(context, plan)
    stored = await context.store.get(key)
    _require_fit(plan, stored.profile)
    if reason := stored.state.silent:
        detail = f"no engine of {key} answers, so nothing can be measured: {reason}. Start it, and ask again"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "engine-unavailable", detail)
    values = {
        "id": secrets.token_hex(6),
        "name": plan.name,
        "profile_namespace": key.namespace,
        "profile_name": key.name,
        "status": ExperimentStatus.QUEUED,
        "seed": plan.seed,
        "plan": plan.model_copy(update={"profile": str(key)}).model_dump(mode="json", by_alias=True),
        "profile": stored.profile.model_dump(mode="json", by_alias=True),
        "created_at": utc_now(),
        "cancel_requested": False,
        "restore_pending": False,
        "version": 0,
        "idempotency_key": idempotency_key,
        "request_digest": digest,
    }
    arms = [
        {"name": arm.name, "settings": arm.model_dump(mode="json", by_alias=True, exclude={"name"})}
        for arm in plan.all_arms
    ]
    async with context.database.write() as session:
        if await experiments.create(session, values, arms):
            row = await experiments.get(session, str(values["id"]))
            assert row is not None
            return summary(row), True
        assert idempotency_key is not None
        earlier = await experiments.by_key(session, idempotency_key)
    assert earlier is not None
    return _replay(earlier, digest), False


async def read(context: AppContext, experiment_id: str) -> ExperimentSummary:
    """Return an experiment's summary. Raises ProblemError 404."""
    async with context.database.read() as session:
        row = await experiments.get(session, experiment_id)
    if row is None:
        raise missing(experiment_id)
    return summary(row)


async def detail(context: AppContext, experiment_id: str) -> ExperimentDetail:
    """Return an experiment with its arms, blocks and result. Raises ProblemError 404."""
    async with context.database.read() as session:
        row = await experiments.get_with_arms(session, experiment_id)
        if row is None:
            raise missing(experiment_id)
        blocks = await records.blocks_of(session, experiment_id)
        result = await records.result_of(session, row)
    return ExperimentDetail(
        **dict(summary(row)),
        plan=ExperimentPlan.model_validate(row.plan),
        profile_snapshot=InferenceProfile.model_validate(row.profile),
        engine=EngineFingerprint.model_validate(row.engine) if row.engine else None,
        arms=[ArmDetail.model_validate({"name": arm.name, "result": arm.result, **arm.settings}) for arm in row.arms],
        blocks=blocks,
        result=result,
        trustworthy=result.trustworthy if result else None,
    )


async def cancel(context: AppContext, experiment_id: str) -> ExperimentSummary:
    """Ask for the end of an experiment; one that has ended stays as it is. Raises ProblemError 404."""
    async with context.database.write() as session:
        row = await runs.request_cancel(session, experiment_id, utc_now())
        if row is None:
            raise missing(experiment_id)
        await session.flush()
        return summary(row)


def missing(experiment_id: str) -> ProblemError:
    """Return the problem of an experiment that is not there."""
    return not_found(f"the experiment {experiment_id}", "GET /v1/experiments lists those that exist.")


async def _profile_key(context: AppContext, plan: ExperimentPlan) -> ProfileKey:
    keys = await context.store.keys()
    if plan.profile is None:
        if len(keys) == 1:
            return keys[0]
        raise _invalid("profile", f"name the profile to measure, one of: {', '.join(map(str, keys)) or 'none exists'}")
    namespace, _, name = plan.profile.partition("/")
    key = ProfileKey(namespace, name)
    if key not in keys:
        raise _invalid("profile", f"{key} does not exist; there is: {', '.join(map(str, keys)) or 'none'}")
    return key


def _require_fit(plan: ExperimentPlan, profile: InferenceProfile) -> None:
    """Refuse now what the runner would refuse later, as far as the profile tells the engine's limits."""
    spec = profile.spec
    if spec.model.max_model_len is None:
        return
    known = EngineFingerprint(
        model=spec.model.served_name or spec.model.source,
        max_model_len=spec.model.max_model_len,
        max_num_batched_tokens=spec.engine.max_num_batched_tokens,
        max_num_seqs=spec.engine.max_num_seqs,
    )
    problems = capacity_problems(plan, known)
    if problems:
        errors: list[FieldError] = [{"field": "workload", "message": problem} for problem in problems]
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "plan-does-not-fit", "; ".join(problems), errors=errors)


def _invalid(field: str, message: str) -> ProblemError:
    errors: list[FieldError] = [{"field": field, "message": message}]
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "validation", f"{field}: {message}", errors=errors)


def _digest(plan: ExperimentPlan) -> str:
    return hashlib.sha256(json.dumps(plan.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _replay(earlier: ExperimentRow, digest: str) -> ExperimentSummary:
    if earlier.request_digest != digest:
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "idempotency-key-reused",
            f"this Idempotency-Key made the experiment {earlier.id} with another plan; use a new key for a new plan",
            extra={"experiment": earlier.id},
        )
    return summary(earlier)
