"""What routes are given: the parts of the running app, and parsed parameters that several share."""

import re
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Depends, Query, Request

from paceline.control_api.context import AppContext
from paceline.control_api.errors import ProblemError
from paceline.control_api.profiles.base import ProfileKey
from paceline.control_api.services.progress import ProgressHub
from paceline.control_api.services.worker import ExperimentWorker

MAX_WAIT_SECONDS: Final = 60.0
_WAIT = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m)?")


def context(request: Request) -> AppContext:
    """Return the running app's parts."""
    found: AppContext = request.app.state.context
    return found


def hub(request: Request) -> ProgressHub:
    """Return what tells watchers of experiments."""
    found: ProgressHub = request.app.state.hub
    return found


def worker(request: Request) -> ExperimentWorker:
    """Return what runs experiments."""
    found: ExperimentWorker = request.app.state.worker
    return found


def wait_seconds(
    wait: Annotated[
        str, Query(description="How long to wait for the engines: `5s`, `500ms`; at most 60s", examples=["5s"])
    ] = "5s",
) -> float:
    """Return the duration of `?wait=` in seconds. Raises ProblemError 422."""
    match = _WAIT.fullmatch(wait)
    unit = {"ms": 0.001, "m": 60.0}
    seconds = float(match[1]) * unit.get(match[2], 1.0) if match else -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        detail = f"query.wait: {wait!r} is not a duration of 0s to 60s; write 5s or 500ms"
        errors = [{"field": "query.wait", "message": detail.removeprefix("query.wait: ")}]
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "validation", detail, errors=errors)  # type: ignore[arg-type]
    return seconds


def profile_key(namespace: str, name: str) -> ProfileKey:
    """Return the key that stands in the path."""
    return ProfileKey(namespace, name)


Context = Annotated[AppContext, Depends(context)]
Hub = Annotated[ProgressHub, Depends(hub)]
Worker = Annotated[ExperimentWorker, Depends(worker)]
Key = Annotated[ProfileKey, Depends(profile_key)]
WaitSeconds = Annotated[float, Depends(wait_seconds)]
