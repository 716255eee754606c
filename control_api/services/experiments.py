"""Experiments as people handle them: asked for, listed, read, cancelled."""

import hashlib
import json
import secrets
from http import HTTPStatus

from paceline.bench.capacity import capacity_problems
from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import EngineFingerprint
from paceline.control_api.auth import Access, Verb
from paceline.control_api.context import AppContext
from paceline.control_api.db.tables import ExperimentRow
from paceline.control_api.db.types import utc_now
from paceline.control_api.errors import FieldError, ProblemError, not_found
from paceline.control_api.models import experiments, records, runs
from paceline.control_api.profiles.base import Change, ProfileKey, StoredProfile
from paceline.control_api.schemas.experiments import (
    ArmDetail,
    ExperimentDetail,
    ExperimentStatus,
    ExperimentSummary,
)
from paceline.control_api.services.views import summary
from paceline.operator.api.v1alpha1 import InferenceProfile


async def create(
    context: AppContext, access: Access, plan: ExperimentPlan, idempotency_key: str | None, *, force: bool
) -> tuple[ExperimentSummary, bool]:
    """Queue an experiment and return it, with whether it is new.

    A repeated idempotency key returns the experiment that the first request made. `force` lets the run change fields
    that another tool declares.

    Raises:
        ProblemError: 403 where the caller may not change the profile; 409 where another tool declares what an arm
            changes; 422 for a profile that is not there, a plan that does not fit its engine, or a key that was used
            with another plan; 503 when no engine of the profile answers.
    """
    digest = _digest(plan)
    if idempotency_key is not None:
        async with context.database.read() as session:
            earlier = await experiments.by_key(session, idempotency_key)
        if earlier is not None:
            await access.require(Verb.PATCH, profile_of(earlier))
            return _replay(earlier, digest), False
    stored = await _measured_profile(context, access, plan)
    key = stored.key
    _require_fit(plan, stored.profile)
    if reason := stored.state.silent:
        detail = f"no engine of {key} answers, so nothing can be measured: {reason}. Start it, and ask again"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "engine-unavailable", detail)
    await context.store.engine_access(key)
    if not force:
        changes = [Change(pacing=arm.pacing, coalescing=arm.coalescing) for arm in plan.all_arms]
        await context.store.require_free(key, changes)
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


def profile_of(row: ExperimentRow) -> ProfileKey:
    """Return the key of the profile that an experiment measures."""
    return ProfileKey(row.profile_namespace, row.profile_name)


async def require_access(context: AppContext, access: Access, verb: Verb, experiment_id: str) -> None:
    """Let a caller through who may do that to the profile of an experiment. Raises ProblemError 403 and 404."""
    async with context.database.read() as session:
        row = await experiments.get(session, experiment_id)
    if row is None:
        raise missing(experiment_id)
    await access.require(verb, profile_of(row))


async def detail(context: AppContext, access: Access, experiment_id: str) -> ExperimentDetail:
    """Return an experiment with its arms, blocks and result. Raises ProblemError 403 and 404."""
    await require_access(context, access, Verb.GET, experiment_id)
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


async def listable(context: AppContext, access: Access, profile: tuple[str, str] | None) -> frozenset[str] | None:
    """Return the namespaces whose experiments a caller may list, None for all. Raises ProblemError 403."""
    if profile is not None:
        await access.require(Verb.GET, ProfileKey(*profile))
        return None
    async with context.database.read() as session:
        namespaces = await experiments.namespaces(session)
    return await access.listable(namespaces)


async def cancel(context: AppContext, access: Access, experiment_id: str) -> ExperimentSummary:
    """Ask for the end of an experiment; one that has ended stays as it is. Raises ProblemError 403 and 404."""
    await require_access(context, access, Verb.PATCH, experiment_id)
    async with context.database.write() as session:
        row = await runs.request_cancel(session, experiment_id, utc_now())
        if row is None:
            raise missing(experiment_id)
        await session.flush()
        return summary(row)


def missing(experiment_id: str) -> ProblemError:
    """Return the problem of an experiment that is not there."""
    return not_found(
        f"the experiment {experiment_id}", "`paceline experiment list`, or GET /v1/experiments, tells which exist."
    )


async def _measured_profile(context: AppContext, access: Access, plan: ExperimentPlan) -> StoredProfile:
    """Return the profile that a plan names, or the only one there is, if the caller may change it."""
    if plan.profile is None:
        keys = await context.store.keys()
        allowed = await access.listable({key.namespace for key in keys})
        keys = [key for key in keys if allowed is None or key.namespace in allowed]
        if len(keys) != 1:
            known = ", ".join(map(str, keys)) or "none exists"
            raise _invalid("profile", f"name the profile to measure, one of: {known}")
        key = keys[0]
    else:
        namespace, _, name = plan.profile.partition("/")
        key = ProfileKey(namespace, name)
    # Before it is looked for, so that nobody learns here which profiles exist.
    await access.require(Verb.PATCH, key)
    try:
        return await context.store.get(key)
    except ProblemError as problem:
        if problem.status is not HTTPStatus.NOT_FOUND:
            raise
        raise _invalid("profile", problem.detail) from problem


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
