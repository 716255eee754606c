"""Experiments: asked for, watched, read, cancelled."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Header, Path, Query, Response
from pydantic import AwareDatetime
from sse_starlette import EventSourceResponse, ServerSentEvent

from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import RequestRecord, Role
from paceline.control_api import pagination
from paceline.control_api.auth import CallerAccess, Verb
from paceline.control_api.models import experiments as models
from paceline.control_api.models import records
from paceline.control_api.routes.dependencies import Context, Hub, Worker
from paceline.control_api.schemas.common import Page, problem_responses
from paceline.control_api.schemas.experiments import (
    PLAN_EXAMPLES,
    ExperimentDetail,
    ExperimentStatus,
    ExperimentSummary,
    StoredRequest,
    Timeline,
)
from paceline.control_api.services import experiments as service
from paceline.control_api.services.timeline import timeline
from paceline.control_api.services.views import summary

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

PING_SECONDS = 15

ExperimentId = Annotated[str, Path(min_length=1, max_length=32, description="As POST answered it")]
Cursor = Annotated[str | None, Query(max_length=500, description="nextCursor of the page before")]


@router.post("", status_code=HTTPStatus.ACCEPTED, responses=problem_responses(403, 409, 422, 503))
async def create_experiment(
    context: Context,
    access: CallerAccess,
    worker: Worker,
    response: Response,
    plan: Annotated[ExperimentPlan, Body(openapi_examples=PLAN_EXAMPLES)],
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, description="Makes a repeated request safe")
    ] = None,
    force: Annotated[
        bool, Query(description="Change fields that another tool declares, for as long as it runs")
    ] = False,
) -> ExperimentSummary:
    """Queue an experiment. It runs in the background, after those of the same profile that were queued before.

    A request that repeats an Idempotency-Key answers with the experiment that the first one made.
    """
    experiment, is_new = await service.create(context, access, plan, idempotency_key, force=force)
    worker.wake()
    response.headers["Location"] = f"/v1/experiments/{experiment.id}"
    response.headers["Idempotency-Replayed"] = "false" if is_new else "true"
    return experiment


@router.get("", responses=problem_responses(400, 403, 422))
async def list_experiments(
    context: Context,
    access: CallerAccess,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    profile: Annotated[str | None, Query(pattern="^[^/]+/[^/]+$", description="Only of this namespace/name")] = None,
    status: Annotated[ExperimentStatus | None, Query(description="Only those that stand so")] = None,
    created_after: Annotated[
        AwareDatetime | None, Query(alias="createdAfter", examples=["2026-01-31T12:00:00Z"])
    ] = None,
    created_before: Annotated[AwareDatetime | None, Query(alias="createdBefore")] = None,
) -> Page[ExperimentSummary]:
    """List experiments, the newest first; in a cluster those of the namespaces whose profiles the caller may list."""
    after = pagination.decode_instant(cursor)
    namespace, _, name = (profile or "").partition("/")
    wanted = (namespace, name) if profile else None
    namespaces = await service.listable(context, access, wanted)
    filters = models.Filters(namespaces, wanted, status, created_after, created_before)
    async with context.database.read() as session:
        rows = await models.page(session, filters, after, limit + 1)
    page, last = pagination.split(rows, limit)
    next_cursor = pagination.encode(last.created_at.isoformat(), last.id) if last else None
    return Page(items=[summary(row) for row in page], next_cursor=next_cursor)


@router.get("/{experiment_id}", responses=problem_responses(403, 404))
async def get_experiment(context: Context, access: CallerAccess, experiment_id: ExperimentId) -> ExperimentDetail:
    """Return one experiment with its arms, blocks, results, verdicts and audits."""
    return await service.detail(context, access, experiment_id)


@router.get("/{experiment_id}/requests", responses=problem_responses(400, 403, 404))
async def list_requests(
    context: Context,
    access: CallerAccess,
    experiment_id: ExperimentId,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Page[StoredRequest]:
    """Return the raw requests with the timestamps of their chunks, in the order in which they ended."""
    await service.require_access(context, access, Verb.GET, experiment_id)
    async with context.database.read() as session:
        rows = await records.requests_page(session, experiment_id, pagination.decode_position(cursor), limit + 1)
    page, last = pagination.split(rows, limit)
    items = [StoredRequest(id=row.id, record=RequestRecord.model_validate(row.record)) for row in page]
    return Page(items=items, next_cursor=pagination.encode(last.id) if last else None)


@router.get("/{experiment_id}/timeline", responses=problem_responses(403, 404))
async def get_timeline(
    context: Context,
    access: CallerAccess,
    experiment_id: ExperimentId,
    bin_seconds: Annotated[float, Query(alias="binSeconds", ge=0.01, le=60)] = 0.5,
) -> Timeline:
    """Return the residents' token rate over time, block by block, as a plot needs it."""
    await service.require_access(context, access, Verb.GET, experiment_id)
    async with context.database.read() as session:
        blocks = await records.blocks_of(session, experiment_id)
        residents = await records.requests_with_role(session, experiment_id, Role.RESIDENT)
    return timeline(blocks, residents, bin_seconds)


@router.get(
    "/{experiment_id}/events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **problem_responses(403, 404)},
)
async def watch_experiment(
    context: Context,
    access: CallerAccess,
    hub: Hub,
    experiment_id: ExperimentId,
    last_event_id: Annotated[int | None, Header(description="The last version that was seen")] = None,
) -> EventSourceResponse:
    """Stream the experiment's summary at each change: events `progress`, and one last event `end`."""
    await service.require_access(context, access, Verb.GET, experiment_id)

    async def events() -> AsyncIterator[ServerSentEvent]:
        with context.metrics.event_streams.track_inprogress():
            async for change in hub.watch(experiment_id, last_event_id):
                kind = "end" if change.status.ended else "progress"
                yield ServerSentEvent(change.model_dump_json(by_alias=True), event=kind, id=str(change.version))

    return EventSourceResponse(events(), ping=PING_SECONDS)


@router.post("/{experiment_id}/cancel", responses=problem_responses(403, 404))
async def cancel_experiment(
    context: Context, access: CallerAccess, worker: Worker, hub: Hub, experiment_id: ExperimentId
) -> ExperimentSummary:
    """Stop an experiment. What it measured so far is kept; one that has ended stays as it is."""
    experiment = await service.cancel(context, access, experiment_id)
    worker.cancel(experiment_id)
    hub.notify(experiment_id)
    return experiment
