"""The ledger of live settings in the cluster: read it, raise it by compare-and-swap, fence earlier leaders off."""

from collections.abc import Callable

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.status import ChangeStatus, InferenceProfileStatus
from paceline.operator.cache import Cache, Key, Manifest
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import ApiError
from paceline.operator.kube.lease import LostLeadershipError
from paceline.operator.kube.resources import CONFIG_MAPS
from paceline.operator.ledger import Fence, change_of, next_settings
from paceline.operator.specs.settings_map import Ledger, settings_map
from paceline.operator.specs.subject import Subject
from paceline.operator.writer import MANAGER, NameTakenError, owned_by_profile, owner_uid

_ATTEMPTS = 5


class SettingsLedger:
    """The settings ConfigMaps of all profiles, under one leadership.

    A leader claims each profile's ledger once, by raising its epoch. Whoever finds a higher epoch than the one that he
    claimed has been succeeded.
    """

    def __init__(self, client: KubeClient, cache: Cache) -> None:
        self._client = client
        self._cache = cache
        self._claimed: dict[Key, int] = {}

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a profile that is gone."""
        self._claimed.pop(key, None)

    def read(self, key: Key, subject_name: str, uid: str) -> Ledger | None:
        """Return the ledger as it was last seen, or None where the profile has none."""
        record = self._cache.object(key, CONFIG_MAPS.kind, subject_name)
        if record is None or owner_uid(live := record.manifest()) != uid:
            return None
        return Ledger.read(live)

    async def settle(
        self,
        key: Key,
        subject: Subject,
        generation: int,
        previous: InferenceProfileStatus,
        cold: tuple[str, ...] | None,
        rival_of: Callable[[LiveSettings], Fence | None],
    ) -> Ledger:
        """Bring the ledger in step with the profile and return it.

        `rival_of` returns the fence of an engine that is ahead of given settings, or None.

        Raises LostLeadershipError where a successor has claimed it, NameTakenError, KubeError.
        """
        wanted = subject.spec.live_settings()
        for _ in range(_ATTEMPTS):
            ledger = self.read(key, subject.settings_name, subject.uid)
            claimed = self._claimed.get(key)
            if ledger is not None and claimed is not None and ledger.settings.epoch > claimed:
                raise LostLeadershipError(f"{key}: epoch {ledger.settings.epoch} was claimed by a successor")
            change = change_of(generation, ledger, wanted, cold)
            rival = None if ledger is None else rival_of(ledger.settings)
            settings = next_settings(wanted, ledger, previous, claim=claimed is None, rival=rival)
            if ledger is not None and (settings, change) == (ledger.settings, ledger.change):
                return ledger
            if await self._write(key, subject, settings, change, ledger):
                self._claimed[key] = settings.epoch
        raise ApiError(409, "Conflict", f"the ledger of {key} keeps changing", "settle")

    async def _write(
        self, key: Key, subject: Subject, settings: LiveSettings, change: ChangeStatus, ledger: Ledger | None
    ) -> bool:
        manifest = settings_map(subject, settings, change)
        try:
            answer = await self._swap(key, manifest, ledger)
        except ApiError as error:
            if not error.is_conflict:
                raise
            existing = await self._client.get(CONFIG_MAPS, key.namespace, subject.settings_name)
            if existing is not None:
                if owner_uid(existing) != subject.uid:
                    raise NameTakenError(
                        {**manifest, "metadata": existing["metadata"]}, leaving=owned_by_profile(existing)
                    ) from error
                self._cache.put(CONFIG_MAPS, existing)
            return False
        self._cache.put(CONFIG_MAPS, answer)
        return True

    async def _swap(self, key: Key, manifest: Manifest, ledger: Ledger | None) -> Manifest:
        record = self._cache.object(key, CONFIG_MAPS.kind, manifest["metadata"]["name"])
        if record is None:
            return await self._client.create(manifest, manager=MANAGER)
        # Where the ledger was spoilt there is still a version to compare with.
        version = ledger.version if ledger is not None else str(record.version)
        manifest["metadata"]["resourceVersion"] = version
        return await self._client.apply(manifest, manager=MANAGER)
