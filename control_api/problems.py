"""Turn every error into a problem document (RFC 9457), and none into a bare page or a stack trace."""

from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from paceline.control_api.errors import FieldError, ProblemError, StateFileError

MEDIA_TYPE: Final = "application/problem+json"

_log = structlog.get_logger(__name__)


def render(problem: ProblemError, request_id: str) -> JSONResponse:
    """Return the response for a problem; `instance` is the request's id, which the log lines carry too."""
    body = problem.document(f"urn:paceline:request:{request_id}")
    return JSONResponse(body, int(problem.status), problem.headers, media_type=MEDIA_TYPE)


def field_path(location: tuple[int | str, ...]) -> str:
    """Return a field's path as a user writes it: `arms[1].pacing.interval`, `query.limit`."""
    parts = location[1:] if location and location[0] == "body" else location
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "body"


def validation_problem(issues: list[Any]) -> ProblemError:
    """Return the problem for a request that does not fit its schema: every field with its message."""
    if any(issue["type"] == "json_invalid" for issue in issues):
        return ProblemError(
            HTTPStatus.BAD_REQUEST, "invalid-json", f"the body is not JSON: {issues[0]['ctx']['error']}"
        )
    errors: list[FieldError] = [
        {"field": field_path(issue["loc"]), "message": issue["msg"].removeprefix("Value error, ")} for issue in issues
    ]
    detail = "; ".join(f"{error['field']}: {error['message']}" for error in errors)
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "validation", detail, errors=errors)


def database_problem(error: DBAPIError | PoolTimeoutError) -> ProblemError:
    """Return the problem for a database that does not take the request now."""
    reason = str(error.orig) if isinstance(error, DBAPIError) else "all its connections are in use"
    hint = "Nothing was changed; try again."
    if "readonly" in reason or "read-only" in reason:
        hint = "Nothing was changed: make the database's file and folder writable for the control API."
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "database-unavailable",
        f"the database did not take the request: {reason}. {hint}",
        headers={"Retry-After": "1"},
    )


def _request_id(request: Request) -> str:
    return str(request.scope.get("paceline_request_id", "unknown"))


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").split(";")[0].strip().lower().endswith("json")


def install(app: FastAPI) -> None:
    """Register the handlers on the app."""

    @app.exception_handler(ProblemError)
    async def on_problem(request: Request, problem: ProblemError) -> JSONResponse:
        return render(problem, _request_id(request))

    @app.exception_handler(RequestValidationError)
    async def on_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        issues = list(error.errors())
        if any(issue["loc"] == ("body",) for issue in issues) and not _is_json(request):
            sent = request.headers.get("content-type", "no Content-Type")
            detail = f"the body must be JSON, and the request says {sent}: send Content-Type: application/json"
            return render(ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not-json", detail), _request_id(request))
        return render(validation_problem(issues), _request_id(request))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        details = {
            HTTPStatus.NOT_FOUND: f"there is nothing at {request.url.path}; the routes are listed at /openapi.json",
            HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not take {request.method}; see the header Allow",
        }
        kind = status.phrase.lower().replace(" ", "-")
        problem = ProblemError(status, kind, details.get(status, str(error.detail)), headers=dict(error.headers or {}))
        return render(problem, _request_id(request))

    @app.exception_handler(StateFileError)
    async def on_state_file(request: Request, error: StateFileError) -> JSONResponse:
        _log.error("state_file_unreadable", reason=str(error))
        return render(
            ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "state-unreadable", str(error)), _request_id(request)
        )

    @app.exception_handler(Exception)
    async def on_anything(request: Request, error: Exception) -> JSONResponse:
        detail = (
            "the control API failed in a way that it did not expect; its log has the details under this request's id"
        )
        _log.error("request_crashed", reason=f"{type(error).__name__}: {error}")
        return render(ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected", detail), _request_id(request))

    @app.exception_handler(DBAPIError)
    @app.exception_handler(PoolTimeoutError)
    async def on_database(request: Request, error: DBAPIError | PoolTimeoutError) -> JSONResponse:
        problem = database_problem(error)
        _log.error("database_error", reason=problem.detail)
        return render(problem, _request_id(request))
