"""What the control API asks of a store of profiles, whichever it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from paceline.control_api.errors import ProblemError, not_found
from paceline.control_api.schemas.profiles import CoalescingStatus, EngineStatus, PacingStatus
from paceline.engine_ext.settings import CoalescingSettings, LiveModel, LiveSettings, PacingMode, PacingSettings
from paceline.operator.api.v1alpha1 import InferenceProfile

Part = Literal["pacing", "coalescing"]
"""A part of a profile that is live: changed on a running engine."""

COMMANDS: Final[Mapping[Part, str]] = {"pacing": "pace", "coalescing": "coalesce"}
"""The command of `paceline` that changes a part."""


@dataclass(frozen=True, order=True)
class ProfileKey:
    """The namespace and name of a profile."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def missing(self) -> ProblemError:
        """Return the problem of a profile that is not there."""
        return not_found(f"the profile {self}", "GET /v1/profiles lists those that exist.")


def in_force(pacing: PacingSettings) -> PacingSettings:
    """Return the pacing without a promise that its mode has no use for."""
    return pacing if pacing.mode is PacingMode.SLO else pacing.model_copy(update={"slo": None})


@dataclass(frozen=True)
class LiveState:
    """The settings that are wanted of a profile's engines, and what each engine says it runs.

    `tag` is the entity tag where the fence does not make it. `superseded_by` names who changed a part after it was last
    set here. `note` says why there is no engine, where that is known.
    """

    settings: LiveSettings
    engines: tuple[EngineStatus, ...]
    tag: str | None = None
    superseded_by: Mapping[Part, str] = field(default_factory=dict)
    note: str = ""

    @property
    def applied(self) -> bool:
        """Whether every engine runs the wanted settings; without any engine, nothing is applied."""
        return bool(self.engines) and all(engine.applied for engine in self.engines)

    @property
    def etag(self) -> str:
        """The entity tag of the wanted settings."""
        return self.tag or f'"{self.settings.epoch}.{self.settings.revision}"'

    def pacing_status(self) -> PacingStatus:
        """Return the state as the pacing routes answer it."""
        return PacingStatus(
            pacing=self.settings.pacing,
            revision=self.settings.revision,
            applied=self.applied,
            engines=list(self.engines),
            superseded_by=self.superseded_by.get("pacing"),
        )

    def coalescing_status(self) -> CoalescingStatus:
        """Return the state as the coalescing routes answer it."""
        return CoalescingStatus(
            coalescing=self.settings.coalescing,
            revision=self.settings.revision,
            applied=self.applied,
            engines=list(self.engines),
            superseded_by=self.superseded_by.get("coalescing"),
        )

    @property
    def silent(self) -> str | None:
        """Why no engine answers; None where one does, whatever it runs."""
        if any(engine.revision is not None for engine in self.engines):
            return None
        return self.lagging()

    def lagging(self) -> str:
        """Name the engines that don't run the wanted settings, each with what it said."""
        late = [
            f"{engine.name}: {engine.message or 'not yet applied'}" for engine in self.engines if not engine.applied
        ]
        return "; ".join(late) or self.note or "no engine is known"


@dataclass(frozen=True)
class StoredProfile:
    """A profile as it stands in its store, with its live state."""

    key: ProfileKey
    profile: InferenceProfile
    state: LiveState


@dataclass(frozen=True)
class Change:
    """A change of the live settings; what is None stays as it is.

    `if_match` is an If-Match header. `force` takes fields over from other tools that declare them. `author` is who
    asked for it.
    """

    pacing: PacingSettings | None = None
    coalescing: CoalescingSettings | None = None
    if_match: str | None = None
    force: bool = False
    author: str = ""

    def parts(self) -> dict[Part, LiveModel]:
        """Return what is changed."""
        parts: dict[Part, LiveModel | None] = {"pacing": self.pacing, "coalescing": self.coalescing}
        return {part: wanted for part, wanted in parts.items() if wanted is not None}

    def knobs(self, settings: LiveSettings) -> LiveSettings:
        """Return `settings` with this change made and the fence as it was."""
        return settings.model_copy(update={str(part): wanted for part, wanted in self.parts().items()})


@dataclass(frozen=True)
class EngineAccess:
    """Where an experiment finds a profile's engine."""

    engine_url: str
    admin_url: str
    admin_token: str


class ProfileStore(Protocol):
    """Profiles with their live settings.

    Every method raises ProblemError 404 for a profile that is not there, and 503 where the store does not answer.
    """

    async def open(self) -> None:
        """Begin, in the event loop that everything else runs in."""
        ...

    async def profiles(self) -> list[StoredProfile]:
        """Return all profiles, in the order of their keys."""
        ...

    async def keys(self) -> list[ProfileKey]:
        """Return the keys of all profiles, in order."""
        ...

    async def get(self, key: ProfileKey) -> StoredProfile:
        """Return a profile, and what its engines say that they run."""
        ...

    async def change(self, key: ProfileKey, change: Change, wait_seconds: float) -> LiveState:
        """Make a change, and wait until every engine runs it or the time is over.

        The change is kept whether or not the engines took it in time; the store goes on trying.

        Raises:
            ProblemError: 412 when `if_match` names other settings, 422 when an engine refuses the settings, which are
                then as they were before, 409 when another tool declares what the change would change.
        """
        ...

    async def require_free(self, key: ProfileKey, changes: Sequence[Change]) -> None:
        """Let changes through that no other tool holds against. Raises ProblemError 409, which names it."""
        ...

    async def engine_access(self, key: ProfileKey) -> EngineAccess:
        """Return the addresses of a profile's engine. Raises ProblemError 503 when it has none."""
        ...

    async def close(self) -> None:
        """Stop what runs in the background."""
        ...
