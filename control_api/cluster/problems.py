"""From what the API server refused, or that it did not answer, to a problem document."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import structlog

from paceline.control_api.errors import FieldError, ProblemError
from paceline.operator.kube.errors import ApiError, KubeError

RETRY_SECONDS = 5
_PACING = "spec.pacing."

_log = structlog.get_logger(__name__)


@contextmanager
def told() -> Iterator[None]:
    """Turn the errors of calls to the API server within the block into problems."""
    try:
        yield
    except KubeError as error:
        raise problem_of(error) from error


def problem_of(error: KubeError) -> ProblemError:
    """Return the problem of a call that failed."""
    if isinstance(error, ApiError):
        return _refused(error)
    _log.warning("api_server_unreachable", reason=str(error))
    return _unavailable("api-server-unavailable", "Kubernetes' API server does not answer now")


def _refused(error: ApiError) -> ProblemError:
    # A schema of the cluster that lacks a field of ours is told by a bare 500.
    older = "field not declared in schema" in error.message
    if error.status in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.BAD_REQUEST) or older:
        hint = "; the cluster's InferenceProfile definition is older than this control API: upgrade it" if older else ""
        errors: list[FieldError] = [
            {"field": cause.field.removeprefix(_PACING), "message": cause.message} for cause in error.causes
        ]
        detail = f"the API server refuses it: {error.message}{hint}. Nothing was changed"
        return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "validation", detail, errors=errors)
    if error.status == HTTPStatus.FORBIDDEN:
        detail = f"the control API itself lacks a permission, which its chart's RBAC gives: {error.message}"
        return _unavailable("cluster-refused", detail)
    if error.status == HTTPStatus.UNAUTHORIZED:
        return _unavailable("cluster-refused", "the API server does not take the control API's own token")
    if error.status == HTTPStatus.CONFLICT:
        detail = "the profile keeps changing: nothing was changed by this request; try again"
        return ProblemError(HTTPStatus.CONFLICT, "conflict", detail)
    return _unavailable("api-server-unavailable", f"the API server answered {error.status}: {error.message}")


def _unavailable(kind: str, what: str) -> ProblemError:
    return ProblemError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        kind,
        f"{what}. Engines run on as they are; try again in {RETRY_SECONDS} s",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
