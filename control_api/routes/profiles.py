"""Profiles and their live pacing."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Header, Response

from paceline.control_api.profiles.base import Change, StoredProfile
from paceline.control_api.routes.dependencies import Context, Key, WaitSeconds
from paceline.control_api.schemas.common import Page, problem_responses
from paceline.control_api.schemas.profiles import (
    PACING_EXAMPLES,
    PACING_STATUS_EXAMPLE,
    PacingStatus,
    ProfileStatus,
    ProfileView,
)
from paceline.control_api.services import pacing
from paceline.engine_ext.settings import PacingSettings

router = APIRouter(prefix="/v1/profiles", tags=["profiles"])


def _view(stored: StoredProfile) -> ProfileView:
    state, model = stored.state, stored.profile.spec.model
    return ProfileView(
        namespace=stored.key.namespace,
        name=stored.key.name,
        model=model.served_name or model.source,
        profile=stored.profile,
        status=ProfileStatus(
            revision=state.settings.revision,
            applied=state.applied,
            coalescing=state.settings.coalescing,
            engines=list(state.engines),
        ),
    )


@router.get("", responses=problem_responses())
async def list_profiles(context: Context) -> Page[ProfileView]:
    """List all profiles with their live settings."""
    return Page(items=[_view(await context.store.get(key)) for key in await context.store.keys()])


@router.get("/{namespace}/{name}", responses=problem_responses(404))
async def get_profile(context: Context, key: Key) -> ProfileView:
    """Return one profile: what it asks for, with the live settings in place, and what its engines run."""
    return _view(await context.store.get(key))


@router.get(
    "/{namespace}/{name}/pacing",
    responses={200: {"content": {"application/json": {"example": PACING_STATUS_EXAMPLE}}}, **problem_responses(404)},
)
async def get_pacing(context: Context, key: Key, response: Response) -> PacingStatus:
    """Return the wanted pacing, its revision, and the revision that every engine runs; the ETag fits If-Match."""
    state = (await context.store.get(key)).state
    response.headers["ETag"] = state.etag
    return state.pacing_status()


@router.put(
    "/{namespace}/{name}/pacing",
    responses={
        200: {
            "description": "Every engine runs it",
            "content": {"application/json": {"example": PACING_STATUS_EXAMPLE}},
        },
        202: {"description": "Kept, and not yet run by the engines that are named", "model": PacingStatus},
        **problem_responses(404, 409, 412, 422),
    },
)
async def put_pacing(
    context: Context,
    key: Key,
    seconds: WaitSeconds,
    response: Response,
    body: Annotated[PacingSettings, Body(openapi_examples=PACING_EXAMPLES)],
    if_match: Annotated[str | None, Header(description="Change it only if the ETag is still this one")] = None,
) -> PacingStatus:
    """Change the pacing of running engines, and wait until they run it.

    The change is kept before an engine is asked, so it is never lost: an engine that is down gets it when it is back.
    """
    state = await pacing.change(context, key, Change(pacing=body, if_match=if_match), seconds)
    response.headers["ETag"] = state.etag
    response.status_code = HTTPStatus.OK if state.applied else HTTPStatus.ACCEPTED
    return state.pacing_status()
