"""What can go wrong between the operator and the API server."""

import json
from dataclasses import dataclass
from typing import Any


class KubeError(Exception):
    """Base of the errors of talking to the API server."""


class UnreachableError(KubeError):
    """No answer: refused, reset, timed out, or no name."""


class SilentError(UnreachableError):
    """The connection stands, and nothing comes."""


@dataclass(frozen=True)
class Cause:
    """What is wrong with one field: a word for programs, a sentence, and the path as the API server writes it."""

    reason: str
    message: str
    field: str


class ApiError(KubeError):
    """The API server answered with an error: its HTTP status, reason and message, and the fields at fault."""

    def __init__(self, status: int, reason: str, message: str, request: str, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes

    @classmethod
    def parse(cls, status: int, body: bytes, request: str) -> "ApiError":
        """Read the error from an answer, which a proxy may have written instead of the API server."""
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            return cls(status, "", body[:200].decode(errors="replace"), request)
        return cls(status, str(parsed.get("reason", "")), str(parsed.get("message", "")), request, _causes(parsed))

    @property
    def is_conflict(self) -> bool:
        """Tell whether another writer was there first, or owns a field."""
        return self.status == 409

    @property
    def is_gone(self) -> bool:
        """Tell whether a list or watch asked for a version that the server has forgotten."""
        return self.status == 410


def _causes(status: dict[str, Any]) -> tuple[Cause, ...]:
    found = (status.get("details") or {}).get("causes") or ()
    return tuple(Cause(*(str(cause.get(name, "")) for name in ("reason", "message", "field"))) for cause in found)
