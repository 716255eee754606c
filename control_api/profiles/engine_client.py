"""Calls to an engine's admin port."""

from http import HTTPStatus
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from paceline.control_api.profiles.base import EngineAccess
from paceline.control_api.schemas.profiles import EngineStatus
from paceline.engine_ext.settings import FinalChunk, LiveSettings

SETTINGS_PATH = "/paceline/v1/settings"


class _Reply(BaseModel):
    """An answer of the admin port; fields that a newer engine adds are no fault."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class CoreState(_Reply):
    """What one engine core runs; `engine` is its data-parallel rank."""

    engine: int
    epoch: int
    revision: int
    paced: bool
    reasons: list[str] = []


class CoalescingState(_Reply):
    """What keeps one engine core from coalescing anything."""

    obstacles: list[str] = []


class GateState(_Reply):
    """What the page gate of one engine core does, in a line; nothing where the profile does not ask for it."""

    message: str | None = None


class AdminReply(_Reply):
    """The settings of an engine and the state of each of its cores; other lists are in the order of `engines`."""

    settings: LiveSettings
    engines: list[CoreState]
    compatible: bool
    reasons: list[str] = []
    coalescing: list[CoalescingState] = []
    page_gate: list[GateState] = []

    @property
    def _coalesces(self) -> bool:
        return self.settings.coalescing.final_chunk is FinalChunk.ENABLED

    def statuses(self, wanted: LiveSettings) -> tuple[EngineStatus, ...]:
        """Return how far each core is on the way to the wanted settings."""
        spans = self.coalescing or [CoalescingState()] * len(self.engines)
        gates = self.page_gate or [GateState()] * len(self.engines)
        return tuple(
            self._status(core, span, gate, wanted) for core, span, gate in zip(self.engines, spans, gates, strict=True)
        )

    def _status(self, core: CoreState, span: CoalescingState, gate: GateState, wanted: LiveSettings) -> EngineStatus:
        applied = (core.epoch, core.revision) == wanted.fence and self.settings.same_knobs(wanted)
        reasons = list(dict.fromkeys([*core.reasons, *([] if self.compatible else self.reasons)]))
        if not applied:
            reasons.insert(
                0, f"runs epoch {core.epoch} revision {core.revision}, wanted is {wanted.epoch} {wanted.revision}"
            )
        return EngineStatus(
            name="engine" if len(self.engines) == 1 else f"engine-{core.engine}",
            revision=core.revision,
            applied=applied,
            paced=core.paced and self.compatible,
            message="; ".join(reasons) or None,
            uncoalesced=("; ".join(span.obstacles) or None) if self._coalesces else None,
            page_gate=gate.message,
        )


class EngineUnavailableError(Exception):
    """The engine could not be asked, or did not answer as one; it may later."""


class EngineRefusedError(Exception):
    """The engine understood and refused the settings: `status` 409 for a stale fence, 422 for settings it can't run."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class EngineClient:
    """One HTTP client for all engines. Times are in seconds."""

    def __init__(self, *, connect_seconds: float = 2.0, answer_seconds: float = 10.0) -> None:
        timeout = httpx.Timeout(answer_seconds, connect=connect_seconds)
        # A proxy of the environment must never see the admin token, nor stand between us and a loopback address.
        # Idle connections are given up before the engine's server closes them, after 5 s, under a request.
        limits = httpx.Limits(keepalive_expiry=2.0)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def read(self, access: EngineAccess) -> AdminReply:
        """Return what the engine runs. Raises EngineUnavailableError."""
        try:
            return await self._call("GET", access, None)
        except EngineRefusedError as error:
            raise EngineUnavailableError(error.detail) from error

    async def push(self, access: EngineAccess, settings: LiveSettings) -> AdminReply:
        """Make the engine run `settings`. Raises EngineUnavailableError and EngineRefusedError."""
        return await self._call("PUT", access, settings.model_dump(mode="json", by_alias=True))

    async def _call(self, method: str, access: EngineAccess, body: dict[str, Any] | None) -> AdminReply:
        headers = {"Authorization": f"Bearer {access.admin_token}"}
        url = access.admin_url.rstrip("/") + SETTINGS_PATH
        try:
            response = await self._http.request(method, url, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"the engine's admin port does not answer ({type(error).__name__}: {error})"
            raise EngineUnavailableError(message) from error
        if response.status_code in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
            raise EngineRefusedError(response.status_code, _detail(response))
        if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            message = (
                "the engine does not accept the admin token: restart `paceline up`, so that both have the same one"
            )
            raise EngineUnavailableError(message)
        if response.status_code != HTTPStatus.OK:
            message = f"the engine's admin port answered {response.status_code}: {_detail(response)}"
            raise EngineUnavailableError(message)
        try:
            return AdminReply.model_validate_json(response.content)
        except ValidationError as error:
            message = f"{url} does not answer as an engine's admin port ({error.error_count()} fields do not fit)"
            raise EngineUnavailableError(message) from error


def _detail(response: httpx.Response) -> str:
    try:
        document = response.json()
    except ValueError:
        return response.text[:200]
    return str(document.get("detail") or document.get("title") or document) if isinstance(document, dict) else ""
