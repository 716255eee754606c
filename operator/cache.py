"""What the operator remembers of the cluster: profiles, their engine pods, and the objects made for them.

Objects are kept as compact JSON text, parsed when a pass needs them: a thousand profiles as dictionaries would take
most of the memory that the operator may use.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.operator.kube.resources import PODS, PROFILES, Resource
from paceline.operator.pods import PodView
from paceline.operator.specs.names import PROFILE_LABEL

Manifest = dict[str, Any]


class Key(NamedTuple):
    """A profile."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Record:
    """An object as it was last seen. `scalers` are the field managers that own `spec.replicas`."""

    uid: str
    version: int
    text: str
    scalers: frozenset[str] = frozenset()

    def manifest(self) -> Manifest:
        """Return the object, without its managed fields."""
        parsed: Manifest = json.loads(self.text)
        return parsed


@dataclass(slots=True)
class _Family:
    """A profile, and everything that carries its label; the profile may be missing."""

    profile: Record | None
    pods: dict[str, tuple[int, PodView]]
    objects: dict[tuple[str, str], Record]


class Cache:
    """The reflectors' store. `on_change` is told the profile that an object belongs to."""

    def __init__(self, on_change: Callable[[Key], None]) -> None:
        self._on_change = on_change
        self._families: dict[Key, _Family] = {}

    def profiles(self) -> Iterator[Key]:
        """Return the profiles that exist."""
        return iter([key for key, family in self._families.items() if family.profile is not None])

    def profile(self, key: Key) -> Manifest | None:
        """Return a profile, or None where it is gone."""
        family = self._families.get(key)
        return family.profile.manifest() if family is not None and family.profile is not None else None

    def pods(self, key: Key) -> list[PodView]:
        """Return a profile's engine pods, by name."""
        family = self._families.get(key)
        return [] if family is None else [view for _, (_, view) in sorted(family.pods.items())]

    def object(self, key: Key, kind: str, name: str) -> Record | None:
        """Return an object that carries the profile's label, whoever owns it."""
        family = self._families.get(key)
        return None if family is None else family.objects.get((kind, name))

    def objects(self, key: Key) -> dict[tuple[str, str], Record]:
        """Return the objects that carry the profile's label, by kind and name."""
        family = self._families.get(key)
        return {} if family is None else dict(family.objects)

    def put(self, resource: Resource, manifest: Manifest) -> None:
        """Take an object; an older version than the known one is ignored."""
        metadata = manifest["metadata"]
        key = _key_of(resource, manifest)
        if key is None:
            return
        version = int(metadata["resourceVersion"])
        family = self._families.setdefault(key, _Family(None, {}, {}))
        if resource == PODS:
            changed = _put_pod(family, version, manifest)
        elif resource == PROFILES:
            changed = _is_news(family.profile, version, metadata["uid"])
            family.profile = _record(version, manifest) if changed else family.profile
        else:
            place = (resource.kind, metadata["name"])
            changed = _is_news(family.objects.get(place), version, metadata["uid"])
            if changed:
                family.objects[place] = _record(version, manifest)
        if changed:
            self._on_change(key)

    def remove(self, resource: Resource, manifest: Manifest) -> None:
        """Drop an object that was deleted, unless another of its name has taken its place."""
        key = _key_of(resource, manifest)
        if key is not None and key in self._families:
            self._drop(resource, key, manifest["metadata"]["name"], manifest["metadata"]["uid"])

    def keep_only(self, resource: Resource, namespace: str | None, uids: set[str]) -> None:
        """Drop the objects of a kind and namespace that a complete list did not hold."""
        for key, family in list(self._families.items()):
            if namespace is None or key.namespace == namespace:
                for name, uid in _present(resource, key, family):
                    if uid not in uids:
                        self._drop(resource, key, name, uid)

    def _drop(self, resource: Resource, key: Key, name: str, uid: str) -> None:
        family = self._families[key]
        dropped = _drop_from(family, resource, name, uid)
        if family.profile is None and not family.pods and not family.objects:
            del self._families[key]
        if dropped:
            self._on_change(key)


def _key_of(resource: Resource, manifest: Manifest) -> Key | None:
    metadata = manifest["metadata"]
    if resource == PROFILES:
        return Key(metadata["namespace"], metadata["name"])
    profile = metadata.get("labels", {}).get(PROFILE_LABEL)
    return None if profile is None else Key(metadata["namespace"], profile)


def _present(resource: Resource, key: Key, family: _Family) -> list[tuple[str, str]]:
    if resource == PODS:
        return [(name, view.uid) for name, (_, view) in family.pods.items()]
    if resource == PROFILES:
        return [] if family.profile is None else [(key.name, family.profile.uid)]
    return [(name, record.uid) for (kind, name), record in family.objects.items() if kind == resource.kind]


def _drop_from(family: _Family, resource: Resource, name: str, uid: str) -> bool:
    if resource == PODS:
        pod = family.pods.get(name)
        if found := pod is not None and pod[1].uid == uid:
            del family.pods[name]
    elif resource == PROFILES:
        if found := family.profile is not None and family.profile.uid == uid:
            family.profile = None
    else:
        known = family.objects.get((resource.kind, name))
        if found := known is not None and known.uid == uid:
            del family.objects[resource.kind, name]
    return found


def _is_news(known: Record | None, version: int, uid: str) -> bool:
    return known is None or known.uid != uid or known.version < version


def _put_pod(family: _Family, version: int, manifest: Manifest) -> bool:
    view = PodView.read(manifest)
    known = family.pods.get(view.name)
    if known is not None and known[1].uid == view.uid and known[0] >= version:
        return False
    family.pods[view.name] = (version, view)
    return known is None or known[1] != view


def _record(version: int, manifest: Manifest) -> Record:
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    owners = frozenset(
        entry["manager"]
        for entry in manifest["metadata"].get("managedFields", ())
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    )
    text = json.dumps({**manifest, "metadata": metadata}, separators=(",", ":"))
    return Record(metadata["uid"], version, text, owners)
