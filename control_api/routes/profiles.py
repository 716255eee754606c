"""Profiles, and their live pacing and coalescing."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Response

from paceline.control_api.auth import CallerAccess, Verb
from paceline.control_api.context import AppContext
from paceline.control_api.profiles.base import Change, LiveState, ProfileKey, StoredProfile
from paceline.control_api.routes.dependencies import Context, Key, WaitSeconds
from paceline.control_api.schemas.common import Page, problem_responses
from paceline.control_api.schemas.profiles import (
    COALESCING_EXAMPLES,
    PACING_EXAMPLES,
    PACING_STATUS_EXAMPLE,
    CoalescingStatus,
    PacingStatus,
    ProfileStatus,
    ProfileView,
)
from paceline.control_api.services import live
from paceline.engine_ext.settings import DeclaredCoalescing, DeclaredPacing

router = APIRouter(prefix="/v1/profiles", tags=["profiles"])
IfMatch = Annotated[str | None, Header(description="Change it only if the ETag is still this one")]
Force = Annotated[bool, Query(description="Take the fields over from another tool that declares them")]


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


async def _read(context: AppContext, access: CallerAccess, key: ProfileKey, response: Response) -> LiveState:
    await access.require(Verb.GET, key)
    state = (await context.store.get(key)).state
    response.headers["ETag"] = state.etag
    return state


async def _change(
    context: AppContext, access: CallerAccess, key: ProfileKey, change: Change, seconds: float, response: Response
) -> LiveState:
    await access.require(Verb.PATCH, key)
    state = await live.change(context, key, change, seconds)
    response.headers["ETag"] = state.etag
    response.status_code = HTTPStatus.OK if state.applied else HTTPStatus.ACCEPTED
    return state


@router.get("", responses=problem_responses(403, 503))
async def list_profiles(context: Context, access: CallerAccess) -> Page[ProfileView]:
    """List all profiles with their live settings; in a cluster those of the namespaces that the caller may list."""
    found = await context.store.profiles()
    allowed = await access.listable({stored.key.namespace for stored in found})
    return Page(items=[_view(stored) for stored in found if allowed is None or stored.key.namespace in allowed])


@router.get("/{namespace}/{name}", responses=problem_responses(403, 404, 503))
async def get_profile(context: Context, access: CallerAccess, key: Key) -> ProfileView:
    """Return one profile: what it asks for, with the live settings in place, and what its engines run."""
    await access.require(Verb.GET, key)
    return _view(await context.store.get(key))


@router.get(
    "/{namespace}/{name}/pacing",
    responses={
        200: {"content": {"application/json": {"example": PACING_STATUS_EXAMPLE}}},
        **problem_responses(403, 404, 503),
    },
)
async def get_pacing(context: Context, access: CallerAccess, key: Key, response: Response) -> PacingStatus:
    """Return the wanted pacing, its revision, and the revision that every engine runs; the ETag fits If-Match."""
    return (await _read(context, access, key, response)).pacing_status()


@router.put(
    "/{namespace}/{name}/pacing",
    responses={
        200: {
            "description": "Every engine runs it",
            "content": {"application/json": {"example": PACING_STATUS_EXAMPLE}},
        },
        202: {"description": "Kept, and not yet run by the engines that are named", "model": PacingStatus},
        **problem_responses(403, 404, 409, 412, 422, 503),
    },
)
async def put_pacing(
    context: Context,
    access: CallerAccess,
    key: Key,
    seconds: WaitSeconds,
    response: Response,
    body: Annotated[DeclaredPacing, Body(openapi_examples=PACING_EXAMPLES)],
    if_match: IfMatch = None,
    force: Force = False,
) -> PacingStatus:
    """Change the pacing of running engines, and wait until they run it.

    The change is kept before an engine is asked, so it is never lost: an engine that is down gets it when it is back.
    """
    change = Change(pacing=body, if_match=if_match, force=force, author=access.caller.name)
    return (await _change(context, access, key, change, seconds, response)).pacing_status()


@router.get("/{namespace}/{name}/coalescing", responses=problem_responses(403, 404, 503))
async def get_coalescing(context: Context, access: CallerAccess, key: Key, response: Response) -> CoalescingStatus:
    """Return the wanted coalescing, its revision, and the revision that every engine runs; the ETag fits If-Match."""
    return (await _read(context, access, key, response)).coalescing_status()


@router.put(
    "/{namespace}/{name}/coalescing",
    responses={
        200: {"description": "Every engine runs it"},
        202: {"description": "Kept, and not yet run by the engines that are named", "model": CoalescingStatus},
        **problem_responses(403, 404, 409, 412, 422, 503),
    },
)
async def put_coalescing(
    context: Context,
    access: CallerAccess,
    key: Key,
    seconds: WaitSeconds,
    response: Response,
    body: Annotated[DeclaredCoalescing, Body(openapi_examples=COALESCING_EXAMPLES)],
    if_match: IfMatch = None,
    force: Force = False,
) -> CoalescingStatus:
    """Switch the coalescing of final chunks on running engines, or change its limits, as the pacing route does."""
    change = Change(coalescing=body, if_match=if_match, force=force, author=access.caller.name)
    return (await _change(context, access, key, change, seconds, response)).coalescing_status()
