"""Errors that a caller is told about: each becomes a problem document, or a message at start."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TypedDict


class FieldError(TypedDict):
    """What is wrong with one field: its path from the body's root, and a message."""

    field: str
    message: str


class StartupError(Exception):
    """The control API can't start; the message says why and what to do."""


class StateFileError(StartupError):
    """A file of the local run can't be read."""


class ProblemError(Exception):
    """An answer that is a problem document (RFC 9457).

    `kind` names the problem for programs (it becomes the URN `urn:paceline:problem:<kind>`), `detail` tells a person
    what happened and what to do about it, `extra` holds further members of the document.
    """

    def __init__(
        self,
        status: HTTPStatus,
        kind: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def document(self, instance: str) -> dict[str, object]:
        """Return the members of the problem document."""
        body: dict[str, object] = {
            "type": f"urn:paceline:problem:{self.kind}",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
            "instance": instance,
        }
        if self.errors:
            body["errors"] = list(self.errors)
        return body | self.extra


def not_found(what: str, hint: str) -> ProblemError:
    """Return the problem of something that is not there, with where to look."""
    return ProblemError(HTTPStatus.NOT_FOUND, "not-found", f"{what} does not exist. {hint}")


def conflict(kind: str, detail: str, **extra: object) -> ProblemError:
    """Return the problem of a request that the present state does not allow."""
    return ProblemError(HTTPStatus.CONFLICT, kind, detail, extra=extra)
