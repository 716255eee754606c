"""Profiles and their live pacing, as the API shows them."""

from typing import Any

from paceline.control_api.schemas.common import Schema
from paceline.engine_ext.settings import CoalescingSettings, PacingSettings
from paceline.operator.api.v1alpha1 import InferenceProfile


class EngineStatus(Schema):
    """What one engine core runs.

    `revision` is None while it does not answer. `applied` tells that it runs the wanted revision; `paced` that it can
    pace at all. `message` says what keeps it from either, `uncoalesced` why nothing is coalesced where that is wanted,
    `page_gate` what the page gate does and what it leaves to the engine; None where the profile does not ask for it.
    """

    name: str
    revision: int | None = None
    applied: bool = False
    paced: bool | None = None
    message: str | None = None
    uncoalesced: str | None = None
    page_gate: str | None = None


class PacingStatus(Schema):
    """The pacing that is wanted, and how far the engines have it.

    `superseded_by` names the field managers, in a cluster, that changed it after it was last set over this API.
    """

    pacing: PacingSettings
    revision: int
    applied: bool
    engines: list[EngineStatus]
    superseded_by: str | None = None


class CoalescingStatus(Schema):
    """The coalescing that is wanted, and how far the engines have it; `superseded_by` as with pacing."""

    coalescing: CoalescingSettings
    revision: int
    applied: bool
    engines: list[EngineStatus]
    superseded_by: str | None = None


class ProfileStatus(Schema):
    """What runs, apart from what the profile asks for."""

    revision: int
    applied: bool
    coalescing: CoalescingSettings
    engines: list[EngineStatus]


class ProfileView(Schema):
    """A profile, its spec with the live settings in place, and its status."""

    namespace: str
    name: str
    model: str
    profile: InferenceProfile
    status: ProfileStatus


PACING_EXAMPLES: dict[str, Any] = {
    "fixed": {
        "summary": "At most one of 4 consecutive engine steps carries prefill tokens",
        "value": {"mode": "Fixed", "interval": 4},
    },
    "slo": {
        "summary": "Promise the residents 80 ms an output token, and newcomers the end of their prefill in 60 s",
        "value": {"mode": "SLO", "slo": {"timePerOutputTokenMilliseconds": 80, "maxPrefillDelaySeconds": 60}},
    },
    "off": {"summary": "As stock vLLM", "value": {"mode": "Disabled"}},
}

COALESCING_EXAMPLES: dict[str, Any] = {
    "on": {"summary": "A prompt's final chunk in one pass", "value": {"finalChunk": "Enabled"}},
    "off": {"summary": "As stock vLLM", "value": {"finalChunk": "Disabled"}},
}

PACING_STATUS_EXAMPLE: dict[str, Any] = {
    "pacing": {"mode": "Fixed", "interval": 4, "slo": None},
    "revision": 7,
    "applied": True,
    "engines": [
        {
            "name": "engine",
            "revision": 7,
            "applied": True,
            "paced": True,
            "message": None,
            "uncoalesced": None,
            "pageGate": None,
        }
    ],
    "supersededBy": None,
}
