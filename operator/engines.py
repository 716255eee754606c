"""Sends live settings to engine pods, and learns what they run."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import aiohttp

from paceline.engine_ext.settings import FinalChunk, LiveSettings
from paceline.operator.pods import PodView

SETTINGS_PATH = "/paceline/v1/settings"


@dataclass(frozen=True)
class EngineReport:
    """What a pod's engine answered, or why it did not.

    `behind` names the engine cores that run older settings than the pod as a whole was given. `refused` tells that
    the engine understood the settings and can't run them: only a change of the profile helps. `page_gate` says in a
    line what the page gate does, nothing where it is disabled; `uncoalesced` why nothing is coalesced that should be.
    """

    settings: LiveSettings | None = None
    compatible: bool = True
    reasons: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    error: str = ""
    refused: bool = False
    page_gate: str = ""
    uncoalesced: str = ""

    def runs(self, wanted: LiveSettings) -> bool:
        """Tell whether every core of the engine runs these very settings."""
        return self.settings is not None and not self.behind and self.settings == wanted

    @property
    def fence(self) -> tuple[int, int]:
        """Epoch and revision that the engine runs; zeros where it told none."""
        return (0, 0) if self.settings is None else self.settings.fence


@dataclass(frozen=True)
class EngineAddress:
    """Where a pod's admin port is. `host` overrides the pod's own address, for clusters without a pod network."""

    port: int
    host: str | None = None

    def url(self, pod: PodView) -> str:
        """Return the address of the settings."""
        host = self.host or pod.ip
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{SETTINGS_PATH}"


@dataclass
class EngineClient:
    """Calls engines' admin ports. One session for all, with a time-out for each call in seconds."""

    address: EngineAddress
    timeout_seconds: float = 3
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def send(self, pods: Iterable[PodView], settings: LiveSettings, token: str) -> dict[str, EngineReport]:
        """Send settings to pods, all at once; return each pod's report by its name."""
        chosen = list(pods)
        reports = await asyncio.gather(*(self._send(pod, settings, token) for pod in chosen))
        return {pod.name: report for pod, report in zip(chosen, reports, strict=True)}

    async def _send(self, pod: PodView, settings: LiveSettings, token: str) -> EngineReport:
        body = settings.model_dump(by_alias=True, exclude_none=True, mode="json")
        try:
            status, answer = await self._call("PUT", pod, token, body)
            if status == 409:
                # It runs newer settings than these, or others under the same fence: which ones?
                found, running = await self._call("GET", pod, token, None)
                return read_report(found, running, conflict=read_problem(answer))
        except (aiohttp.ClientError, OSError) as error:
            return EngineReport(error=f"no answer from the admin port: {str(error) or type(error).__name__}")
        return read_report(status, answer)

    async def _call(self, verb: str, pod: PodView, token: str, body: Any) -> tuple[int, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.timeout_seconds),
                connector=aiohttp.TCPConnector(limit=256, keepalive_timeout=60),
            )
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.request(verb, self.address.url(pod), json=body, headers=headers) as response:
            text = await response.text()
            return response.status, _parse(text)


def read_problem(answer: Any) -> str:
    """Return the sentence of a problem document (RFC 9457), or what came in its place."""
    if isinstance(answer, dict):
        return str(answer.get("detail") or answer.get("title") or answer)
    return str(answer)[:200]


def read_report(status: int, answer: Any, *, conflict: str = "") -> EngineReport:
    """Read an engine's answer to GET or PUT of its settings."""
    if status in (401, 403):
        return EngineReport(error="the engine refused the admin token")
    if status == 422:
        return EngineReport(error=f"the engine can't run these settings: {read_problem(answer)}", refused=True)
    if status != 200 or not isinstance(answer, dict):
        return EngineReport(error=f"the engine answered {status}: {read_problem(answer)}")
    try:
        settings = LiveSettings.model_validate(answer["settings"])
        behind = tuple(_name(core) for core in answer["engines"] if (core["epoch"], core["revision"]) < settings.fence)
    except (KeyError, TypeError, ValueError) as error:
        return EngineReport(error=f"the engine's answer is none of ours: {error}")
    obstacles = chain.from_iterable(core.get("obstacles", ()) for core in answer.get("coalescing", ()))
    reasons = tuple(str(reason) for reason in answer.get("reasons", ()))
    return EngineReport(
        settings=settings,
        compatible=bool(answer.get("compatible", True)),
        reasons=reasons,
        behind=behind,
        error=f"the engine runs others: {conflict}" if conflict else "",
        page_gate=_once(gate.get("message") for gate in answer.get("pageGate", ())),
        uncoalesced=_once(obstacles) if settings.coalescing.final_chunk is FinalChunk.ENABLED else "",
    )


def _once(lines: Iterable[Any]) -> str:
    """Return what an engine's cores say, each different line once."""
    return "; ".join(dict.fromkeys(str(line) for line in lines if line))


def _name(core: Mapping[str, Any]) -> str:
    return f"engine core {core['engine']} at revision {core['revision']}"


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
