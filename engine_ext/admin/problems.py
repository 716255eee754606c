"""Errors of the admin port as problem details (RFC 9457)."""

from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"


class ProblemError(Exception):
    """An error with its HTTP status; `extra` are further members of the problem details."""

    def __init__(self, status: HTTPStatus, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.extra = extra


def problem(status: int, detail: str, **extra: Any) -> JSONResponse:
    """Build the response of an error."""
    title = HTTPStatus(status).phrase
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
    return JSONResponse(
        {"type": "about:blank", "title": title, "status": status, "detail": detail, **extra},
        status_code=status,
        media_type=MEDIA_TYPE,
        headers=headers,
    )


async def on_problem(_: Request, error: Exception) -> JSONResponse:
    """Answer a ProblemError."""
    assert isinstance(error, ProblemError)
    return problem(error.status, error.detail, **error.extra)
