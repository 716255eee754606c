"""The store of a cluster: profiles are InferenceProfile objects, and the custom resource is the only truth."""

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog

from paceline.control_api.cluster.connection import Cluster
from paceline.control_api.cluster.problems import told
from paceline.control_api.errors import ProblemError, StartupError
from paceline.control_api.profiles.base import Change, EngineAccess, LiveState, Part, ProfileKey, StoredProfile
from paceline.control_api.profiles.cluster_changes import applied_manifest, require_free, superseded
from paceline.control_api.profiles.cluster_object import ClusterProfile, Manifest
from paceline.control_api.profiles.cluster_watch import wait_for
from paceline.control_api.profiles.etags import require_match
from paceline.control_api.profiles.ownership import MANAGER
from paceline.operator.config import EngineConfig
from paceline.operator.kube.errors import ApiError
from paceline.operator.kube.resources import PROFILES
from paceline.operator.specs.admin_token import admin_token
from paceline.operator.specs.names import base_name

PAGE_SIZE: Final = 500
ATTEMPTS: Final = 10
"""How often a change is tried whose profile changes between its reading and its writing, as with each new status."""

SHORTEST_KEY_BYTES: Final = 16

_log = structlog.get_logger(__name__)


class KubernetesStore:
    """Changes `spec.pacing` and `spec.coalescing` under a field manager of its own; the operator does the rest.

    `namespaces` are those whose profiles there are here, all where none is named. `key_file` holds the key from which
    the engines' admin tokens are derived. Raises StartupError where it can't be read.
    """

    def __init__(self, cluster: Cluster, key_file: Path, namespaces: Sequence[str] = ()) -> None:
        self._cluster = cluster
        self._namespaces = tuple(namespaces)
        self._key = _read_key(key_file)

    async def open(self) -> None:
        """Make the client of the API server."""
        await self._cluster.open()

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._cluster.close()

    async def profiles(self) -> list[StoredProfile]:
        """Return all profiles; one that this version does not understand is left out, with a line in the log."""
        found = []
        for manifest in await self._list():
            try:
                found.append(ClusterProfile.read(manifest).stored())
            except ProblemError as problem:
                _log.warning("profile_left_out", reason=problem.detail)
        return sorted(found, key=lambda stored: stored.key)

    async def keys(self) -> list[ProfileKey]:
        """Return the keys of all profiles."""
        return sorted(
            ProfileKey(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
            for manifest in await self._list()
        )

    async def get(self, key: ProfileKey) -> StoredProfile:
        """Return a profile, with what its engines run as the operator last saw it."""
        return (await self._read(key)).stored()

    async def change(self, key: ProfileKey, change: Change, wait_seconds: float) -> LiveState:
        """Apply the change, and wait until the operator has it on every engine."""
        before, after = await self._apply(key, change)

        def settled(seen: ClusterProfile) -> bool:
            if _overwritten(change, seen, after) or seen.refusal is not None:
                return True
            without_engines = seen.manifest["spec"].get("engine", {}).get("replicas") == 0
            return seen.is_observed and (seen.state.applied or without_engines)

        seen = await wait_for(self._cluster.client, after, settled, wait_seconds)
        for part, by in _overwritten(change, seen, after).items():
            raise superseded(key, part, by)
        if seen.refusal is not None and seen.etag == after.etag:
            await self._take_back(before, after, change)
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "engine-refused",
                f"an engine can't run these settings: {seen.refusal}. The settings are as they were before",
            )
        return seen.state

    async def require_free(self, key: ProfileKey, changes: Sequence[Change]) -> None:
        """Let changes through that change no field which another tool declares."""
        before = await self._read(key)
        for change in changes:
            require_free(before, change)

    async def engine_access(self, key: ProfileKey) -> EngineAccess:
        """Return the addresses of the Services of a profile's engine, and its derived token."""
        profile = await self._read(key)
        replicas = profile.manifest["spec"].get("engine", {}).get("replicas", 1)
        if replicas > 1:
            detail = (
                f"{key} has {replicas} engines, and a request may go to any of them: measure a profile with "
                "engine.replicas 1, such as a copy of this one"
            )
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "many-engines", detail)
        base = base_name(key.name)
        return EngineAccess(
            engine_url=f"http://{base}.{key.namespace}.svc",
            admin_url=f"http://{base}-admin.{key.namespace}.svc:{EngineConfig().admin_port}",
            admin_token=admin_token(self._key, profile.uid),
        )

    async def _apply(self, key: ProfileKey, change: Change) -> tuple[ClusterProfile, ClusterProfile]:
        """Return the profile before and after the change."""
        for attempt in range(1, ATTEMPTS + 1):
            before = await self._read(key)
            require_match(change.if_match, before.etag)
            if not change.force:
                require_free(before, change)
            with told():
                try:
                    # Forced: whose fields may be taken was decided above, on the very version that is named.
                    answer = await self._cluster.client.apply(applied_manifest(before, change), manager=MANAGER)
                except ApiError as error:
                    if not error.is_conflict or attempt == ATTEMPTS:
                        raise
                    continue
            return before, ClusterProfile.read(answer)
        raise AssertionError("the last attempt returns or raises")

    async def _take_back(self, before: ClusterProfile, refused: ClusterProfile, change: Change) -> None:
        back = Change(
            pacing=None if change.pacing is None else before.pacing,
            coalescing=None if change.coalescing is None else before.coalescing,
            if_match=refused.etag,
            force=True,
            author=change.author,
        )
        try:
            await self._apply(before.key, back)
        except ProblemError as problem:
            if problem.status is not HTTPStatus.PRECONDITION_FAILED:
                raise
            _log.info("settings_left", profile=str(before.key), reason="somebody changed them since")

    async def _read(self, key: ProfileKey) -> ClusterProfile:
        if self._namespaces and key.namespace not in self._namespaces:
            raise key.missing()
        with told():
            manifest = await self._cluster.client.get(PROFILES, key.namespace, key.name)
        if manifest is None:
            raise key.missing()
        return ClusterProfile.read(manifest)

    async def _list(self) -> list[Manifest]:
        found: list[Manifest] = []
        for namespace in self._namespaces or (None,):
            query = {"limit": str(PAGE_SIZE)}
            while True:
                with told():
                    page = await self._cluster.client.page(PROFILES, namespace, query)
                found += page["items"]
                if not (token := page["metadata"].get("continue")):
                    break
                query["continue"] = token
        return found


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except OSError as error:
        raise StartupError(f"PACELINE_API_ADMIN_KEY_FILE can't be read: {error}") from error
    if len(key) < SHORTEST_KEY_BYTES:
        raise StartupError(f"PACELINE_API_ADMIN_KEY_FILE: {path} holds less than {SHORTEST_KEY_BYTES} bytes")
    return key


def _overwritten(change: Change, seen: ClusterProfile, applied: ClusterProfile) -> dict[Part, str]:
    """Return who else changed what was changed since it was applied; a later change over this API is none."""
    if seen.etag == applied.etag:
        return {}
    return {part: by for part, by in seen.state.superseded_by.items() if part in change.parts()}
