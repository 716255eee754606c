"""Opaque cursors: where the last page ended, so that rows added meanwhile neither repeat nor hide others."""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus

from paceline.control_api.errors import ProblemError


def encode(*parts: str | int) -> str:
    """Return the cursor that holds these parts."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_position(cursor: str | None) -> int:
    """Return the row id in a cursor; 0 without one. Raises ProblemError 400."""
    if cursor is None:
        return 0
    match _parts(cursor):
        case [int(position)]:
            return position
    raise _invalid()


def decode_instant(cursor: str | None) -> tuple[datetime, str] | None:
    """Return the instant and id in a cursor; None without one. Raises ProblemError 400."""
    if cursor is None:
        return None
    match _parts(cursor):
        case [str(instant), str(identifier)]:
            try:
                value = datetime.fromisoformat(instant)
            except ValueError:
                raise _invalid() from None
            if value.tzinfo is not None:
                return value, identifier
    raise _invalid()


def split[Row](rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], Row | None]:
    """Split `limit + 1` rows that were read into a page, and its last row where more follow."""
    page = rows[:limit]
    return page, page[-1] if len(rows) > limit else None


def _parts(cursor: str) -> object:
    try:
        return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        raise _invalid() from None


def _invalid() -> ProblemError:
    detail = "query.cursor: this is no cursor of this list: take nextCursor of its last page, or leave it out"
    errors = [{"field": "query.cursor", "message": detail.removeprefix("query.cursor: ")}]
    return ProblemError(HTTPStatus.BAD_REQUEST, "invalid-cursor", detail, errors=errors)  # type: ignore[arg-type]
