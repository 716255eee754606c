"""Writes a profile's objects: only what differs, never over someone else's object."""

import hashlib
import json
from typing import Final

from paceline.operator.api.v1alpha1 import GROUP, KIND
from paceline.operator.cache import Cache, Key, Manifest, Record
from paceline.operator.drift import differences
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import ApiError, KubeError
from paceline.operator.kube.resources import SECRETS, resource_of

MANAGER: Final = "paceline-operator"
TEMPLATE_MANAGER: Final = "paceline-operator-template"
APPLIED_ANNOTATION: Final = f"{GROUP}/applied"


class NameTakenError(Exception):
    """An object of a name that a profile needs exists and is not the profile's."""

    def __init__(self, manifest: Manifest, *, leaving: bool) -> None:
        metadata = manifest["metadata"]
        self.leaving = leaving
        what = f"{manifest['kind']} {metadata['name']}"
        super().__init__(
            f"{what} of an earlier profile of this name is still being deleted"
            if leaving
            else f"{what} exists in namespace {metadata['namespace']} and is not this profile's; "
            "rename the profile, or remove that object"
        )


def owner_uid(manifest: Manifest) -> str | None:
    """Return the UID of an object's controller."""
    references = manifest["metadata"].get("ownerReferences", ())
    return next((reference["uid"] for reference in references if reference.get("controller")), None)


def owned_by_profile(manifest: Manifest) -> bool:
    """Tell whether some profile controls the object."""
    references = manifest["metadata"].get("ownerReferences", ())
    return any(reference["kind"] == KIND and reference.get("controller") for reference in references)


def with_fingerprint(manifest: Manifest) -> Manifest:
    """Return the manifest with a hash of itself, by which a field that is applied no longer is noticed."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


class Writer:
    """Writes through a client and keeps the cache in step with the answers."""

    def __init__(self, client: KubeClient, cache: Cache) -> None:
        self._client = client
        self._cache = cache

    async def create_once(self, key: Key, manifest: Manifest) -> None:
        """Create an object that is never changed afterwards; nothing where the profile has it already."""
        record = self._cache.object(key, manifest["kind"], manifest["metadata"]["name"])
        if record is not None:
            _refuse_others(record.manifest(), manifest)
            return
        try:
            answer = await self._client.create(manifest, manager=MANAGER)
        except ApiError as error:
            if not error.is_conflict:
                raise
            if resource_of(manifest) == SECRETS:
                # Secrets are never read: its name is the profile's, and so it is the profile's.
                return
            answer = await self._existing(manifest)
        if resource_of(manifest) != SECRETS:
            self._cache.put(resource_of(manifest), answer)

    async def apply(self, key: Key, manifest: Manifest, *, manager: str = MANAGER, fingerprint: bool = True) -> None:
        """Apply an object where the live one differs from it."""
        wanted = with_fingerprint(manifest) if fingerprint else manifest
        record = self._cache.object(key, manifest["kind"], manifest["metadata"]["name"])
        if record is not None:
            live = record.manifest()
            _refuse_others(live, manifest)
            if not any(differences(wanted, {**live, "kind": manifest["kind"], "apiVersion": manifest["apiVersion"]})):
                return
            answer = await self._client.apply(wanted, manager=manager)
        else:
            answer = await self._apply_new(wanted, manager)
        self._cache.put(resource_of(manifest), answer)

    async def merge(self, key: Key, manifest: Manifest, body: Manifest) -> None:
        """Merge fields into an existing object, for what applying can't do: remove a field that another set."""
        resource = resource_of(manifest)
        answer = await self._client.merge(resource, key.namespace, manifest["metadata"]["name"], body, manager=MANAGER)
        self._cache.put(resource, answer)

    async def delete(self, key: Key, kind_and_name: tuple[str, str], record: Record) -> None:
        """Delete an object that the profile needs no longer."""
        kind, name = kind_and_name
        resource = resource_of({"kind": kind})
        await self._client.delete(resource, key.namespace, name, record.uid)

    async def _apply_new(self, wanted: Manifest, manager: str) -> Manifest:
        try:
            # Without force: fields of an object that the cache does not know belong to somebody.
            return await self._client.apply(wanted, manager=manager, force=False)
        except ApiError as error:
            if not error.is_conflict:
                raise
        await self._existing(wanted)
        return await self._client.apply(wanted, manager=manager)

    async def _existing(self, wanted: Manifest) -> Manifest:
        metadata = wanted["metadata"]
        existing = await self._client.get(resource_of(wanted), metadata["namespace"], metadata["name"])
        if existing is None:
            raise KubeError(f"{wanted['kind']} {metadata['name']} came and went; try again")
        _refuse_others(existing, wanted)
        return existing


def _refuse_others(live: Manifest, wanted: Manifest) -> None:
    if owner_uid(live) != owner_uid(wanted):
        raise NameTakenError({**wanted, "metadata": live["metadata"]}, leaving=owned_by_profile(live))
