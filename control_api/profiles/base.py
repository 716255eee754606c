"""What the control API asks of a store of profiles, whichever it is."""

from dataclasses import dataclass
from typing import Protocol

from paceline.control_api.errors import ProblemError, not_found
from paceline.control_api.schemas.profiles import EngineStatus, PacingStatus
from paceline.engine_ext.settings import CoalescingSettings, LiveSettings, PacingSettings
from paceline.operator.api.v1alpha1 import InferenceProfile


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


@dataclass(frozen=True)
class LiveState:
    """The settings that are wanted of a profile's engines, and what each engine says it runs."""

    settings: LiveSettings
    engines: tuple[EngineStatus, ...]

    @property
    def applied(self) -> bool:
        """Whether every engine runs the wanted settings; without any engine, nothing is applied."""
        return bool(self.engines) and all(engine.applied for engine in self.engines)

    @property
    def etag(self) -> str:
        """The entity tag of the wanted settings."""
        return f'"{self.settings.epoch}.{self.settings.revision}"'

    def pacing_status(self) -> PacingStatus:
        """Return the state as the pacing routes answer it."""
        return PacingStatus(
            pacing=self.settings.pacing,
            revision=self.settings.revision,
            applied=self.applied,
            engines=list(self.engines),
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
        return "; ".join(late) or "no engine is known"


@dataclass(frozen=True)
class StoredProfile:
    """A profile as it stands in its store, with its live state."""

    key: ProfileKey
    profile: InferenceProfile
    state: LiveState


@dataclass(frozen=True)
class Change:
    """A change of the live settings; what is None stays as it is. `if_match` is an If-Match header."""

    pacing: PacingSettings | None = None
    coalescing: CoalescingSettings | None = None
    if_match: str | None = None

    def knobs(self, settings: LiveSettings) -> LiveSettings:
        """Return `settings` with this change made and the fence as it was."""
        update = {name: value for name in ("pacing", "coalescing") if (value := getattr(self, name)) is not None}
        return settings.model_copy(update=update)


@dataclass(frozen=True)
class EngineAccess:
    """Where an experiment finds a profile's engine."""

    engine_url: str
    admin_url: str
    admin_token: str


class ProfileStore(Protocol):
    """Profiles with their live settings. Every method raises ProblemError 404 for a profile that is not there."""

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
                then as they were before.
        """
        ...

    async def engine_access(self, key: ProfileKey) -> EngineAccess:
        """Return the addresses of a profile's engine. Raises ProblemError 503 when it has none."""
        ...

    async def close(self) -> None:
        """Stop what runs in the background."""
        ...
