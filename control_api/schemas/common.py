"""The base of the API's types, and what several routes share."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel


class Schema(BaseModel):
    """camelCase on the wire, unknown fields refused, values immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


def _rfc3339(value: datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


Instant = Annotated[AwareDatetime, PlainSerializer(_rfc3339, return_type=str)]
"""An instant, in UTC on the wire: `2026-01-31T12:00:00.000000Z`."""


class Page[Item](Schema):
    """One page of a list; ask for the next one with `?cursor=<nextCursor>`, which is null on the last page."""

    items: list[Item]
    next_cursor: str | None = None


class FieldProblem(Schema):
    """What is wrong with one field of a request."""

    field: str
    message: str


class Problem(BaseModel):
    """A problem document (RFC 9457). Programs go by `type`; `detail` says what to do."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "urn:paceline:problem:validation",
                "title": "Unprocessable Entity",
                "status": 422,
                "detail": "interval: Input should be less than or equal to 1024",
                "instance": "urn:paceline:request:5f0c2a3e9b1d4c7f8a6e0d2b4c6f8a1e",
                "errors": [{"field": "interval", "message": "Input should be less than or equal to 1024"}],
            }
        },
    )

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: Annotated[list[FieldProblem], Field(description="The fields at fault, where there are any")] = []


PROBLEM_RESPONSE: dict[str, Any] = {
    "description": "A problem document",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of the problems that a route answers with."""
    return dict.fromkeys((401, *statuses), PROBLEM_RESPONSE)
