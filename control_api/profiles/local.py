"""The store of a local run: one profile, one engine, settings in a file."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

from paceline.control_api.errors import ProblemError
from paceline.control_api.metrics import Metrics
from paceline.control_api.profiles.base import Change, EngineAccess, LiveState, ProfileKey, StoredProfile
from paceline.control_api.profiles.engine_client import EngineClient
from paceline.control_api.profiles.etags import require_match
from paceline.control_api.profiles.local_files import LocalFiles
from paceline.control_api.profiles.pusher import EnginePusher
from paceline.engine_ext.settings import LiveSettings


class LocalStore:
    """Keeps the wanted settings in `settings.json` first, then brings the engine to them.

    The engine starts with the same file, so a change outlives the engine, this process and the machine.
    """

    def __init__(self, files: LocalFiles, client: EngineClient, metrics: Metrics) -> None:
        self._files = files
        self._client = client
        self._pusher = EnginePusher(files, client, metrics)
        self._changing = asyncio.Lock()
        metadata = files.profile().metadata
        self.key = ProfileKey(metadata.namespace, metadata.name)

    async def open(self) -> None:
        """Nothing to do: the engine is asked when somebody wants to know."""

    async def profiles(self) -> list[StoredProfile]:
        """Return the one profile."""
        return [await self.get(self.key)]

    async def keys(self) -> list[ProfileKey]:
        """Return the one profile's key."""
        return [self.key]

    async def get(self, key: ProfileKey) -> StoredProfile:
        """Return the profile with its live settings in place, and ask the engine what it runs."""
        self._require(key)
        state = await self._pusher.observe()
        profile = self._files.profile()
        live = {"pacing": state.settings.pacing, "coalescing": state.settings.coalescing}
        return StoredProfile(key, profile.model_copy(update={"spec": profile.spec.model_copy(update=live)}), state)

    async def change(self, key: ProfileKey, change: Change, wait_seconds: float) -> LiveState:
        """Keep the change with the next revision, push it, and wait for the engine."""
        self._require(key)
        async with self._changing:
            before = self._files.settings()
            require_match(change.if_match, LiveState(before, ()).etag)
            wanted = change.knobs(before)
            if not wanted.same_knobs(before):
                wanted = wanted.model_copy(update={"revision": before.revision + 1})
                await asyncio.to_thread(self._files.write_settings, wanted)
        state = await self._pusher.push(wanted, wait_seconds)
        refusal = self._pusher.refusal(wanted)
        if refusal is not None:
            await self._take_back(wanted, before)
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "engine-refused",
                f"the engine can't run these settings: {refusal}. The settings are as they were before",
            )
        return state

    async def _take_back(self, refused: LiveSettings, before: LiveSettings) -> None:
        # No engine ran the refused revision, so its number may be used again.
        async with self._changing:
            if self._files.settings() == refused:
                await asyncio.to_thread(self._files.write_settings, before)

    async def require_free(self, key: ProfileKey, changes: Sequence[Change]) -> None:
        """Let everything through: nobody else writes a local run's settings."""
        self._require(key)

    async def engine_access(self, key: ProfileKey) -> EngineAccess:
        """Return where the engine listens."""
        self._require(key)
        access = self._files.engine()
        if access is None:
            detail = f"no engine of {key} is running: start it with `paceline up`"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "engine-unavailable", detail)
        return access

    async def close(self) -> None:
        """Stop retrying and close the connections."""
        await self._pusher.close()
        await self._client.close()

    def _require(self, key: ProfileKey) -> None:
        if key != self.key:
            raise key.missing()
