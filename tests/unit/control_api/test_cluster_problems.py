"""What the API server refuses reaches the caller as a problem that says whose fault it is."""

import json

import pytest

from paceline.control_api.cluster.problems import problem_of
from paceline.operator.kube.errors import ApiError, UnreachableError


def refusal(status: int, message: str, *causes: dict[str, str]) -> ApiError:
    body = {"kind": "Status", "reason": "X", "message": message, "details": {"causes": list(causes)}}
    return ApiError.parse(status, json.dumps(body).encode(), "PATCH /path")


@pytest.mark.parametrize(
    ("error", "status", "kind", "said"),
    [
        (refusal(422, "is invalid"), 422, "validation", "is invalid"),
        (refusal(500, ".spec.pacing.new: field not declared in schema"), 422, "validation", "upgrade it"),
        (refusal(403, 'cannot patch resource "x"'), 503, "cluster-refused", 'cannot patch resource "x"'),
        (refusal(401, "Unauthorized"), 503, "cluster-refused", "own token"),
        (refusal(409, "changed"), 409, "conflict", "try again"),
        (refusal(429, "too many"), 503, "api-server-unavailable", "too many"),
        (ApiError.parse(502, b"<html>", "GET /path"), 503, "api-server-unavailable", "<html>"),
        (UnreachableError("GET /path: refused"), 503, "api-server-unavailable", "does not answer"),
    ],
)
def test_a_refusal_becomes_a_problem(error: ApiError, status: int, kind: str, said: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.kind) == (status, kind)
    assert said in problem.detail
    assert ("Retry-After" in problem.headers) == (status == 503)


def test_fields_are_named_as_the_request_has_them() -> None:
    causes = (
        {"reason": "FieldValueInvalid", "message": "should be at most 512", "field": "spec.pacing.interval"},
        {"reason": "FieldValueRequired", "message": "is required", "field": "spec.model"},
    )
    assert problem_of(refusal(422, "is invalid", *causes)).errors == (
        {"field": "interval", "message": "should be at most 512"},
        {"field": "spec.model", "message": "is required"},
    )
