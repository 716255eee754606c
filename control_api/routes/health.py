"""Liveness, readiness and metrics; no token, since probes and scrapers have none."""

from http import HTTPStatus

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from paceline.control_api.db.migrate import SchemaState, schema_state
from paceline.control_api.errors import ProblemError
from paceline.control_api.routes.dependencies import Context

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Tell that the event loop answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(context: Context) -> dict[str, str]:
    """Tell that the database answers and has this version's schema; 503 otherwise."""
    async with context.database.read() as session:
        state, revision = await (await session.connection()).run_sync(schema_state)
    if state is not SchemaState.CURRENT:
        detail = f"the database's schema is {state} (revision {revision}): start the version of Paceline that fits it"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "schema-mismatch", detail)
    return {"status": "ok", "schema": str(revision)}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(context: Context) -> Response:
    """Return the metrics in Prometheus' text format."""
    return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)
