"""Tells users what happened: the profile's status, and Events about it."""

import datetime
import hashlib
import json
from typing import Any, Final

import structlog

from paceline.operator.api.status import ChangeStatus, ConditionType, InferenceProfileStatus
from paceline.operator.api.v1alpha1 import API_VERSION, KIND
from paceline.operator.cache import Cache, Key
from paceline.operator.drift import differences
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import ApiError
from paceline.operator.kube.resources import DEPLOYMENTS, EVENTS, PROFILES
from paceline.operator.profiles import ProfileView
from paceline.operator.troubles import Trouble
from paceline.operator.writer import MANAGER

_CONTROLLER: Final = "paceline.dev/operator"
_LONGEST_NOTE: Final = 1_000
_QUIET_REASONS: Final = frozenset({"Loading", "Starting", "RollingOut", "SettingsPending", "ScaledToZero"})


class Reporter:
    """Writes statuses where they differ from what the API server keeps, and Events once each."""

    def __init__(self, client: KubeClient, cache: Cache, instance: str) -> None:
        self._client = client
        self._cache = cache
        self._instance = instance
        self._written: dict[Key, tuple[str, str]] = {}
        self._announced: dict[Key, set[str]] = {}

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a profile that is gone."""
        self._written.pop(key, None)
        self._announced.pop(key, None)

    def workload_failure(self, key: Key, base: str) -> Trouble | None:
        """Return why the Deployment can't make its pods, such as a quota, or None."""
        record = self._cache.object(key, DEPLOYMENTS.kind, base)
        if record is None:
            return None
        for condition in record.manifest().get("status", {}).get("conditions", ()):
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                return Trouble(condition.get("reason", "ReplicaFailure"), condition.get("message", ""))
        return None

    async def announce(self, profile: ProfileView, change: ChangeStatus | None) -> None:
        """Post an Event about a change of the profile that its status does not show yet."""
        if change is not None and profile.previous.observed_generation < change.generation:
            await self._event(profile, f"{change.kind.value}Change", change.message, "Normal")

    async def write(self, key: Key, profile: ProfileView, status: InferenceProfileStatus) -> None:
        """Write the status where it differs, and an Event where the profile got into a fault."""
        wanted = status.model_dump(by_alias=True, exclude_none=True, mode="json")
        live = profile.raw_status
        # An older CRD prunes what it does not know: then the written status never equals the wanted one.
        settled = self._written.get(key) == (_hash(wanted), _hash(live))
        if settled or (live and not any(differences(wanted, live)) and _same_lists(wanted, live)):
            return
        ready = status.condition(ConditionType.READY)
        before = profile.previous.condition(ConditionType.READY)
        faulty = ready is not None and ready.status == "False" and ready.reason not in _QUIET_REASONS
        if ready is not None and faulty and (before is None or before.reason != ready.reason):
            await self._event(profile, ready.reason, ready.message, "Warning")
        # With the UID, so that a profile made anew under this name never gets its predecessor's status.
        body = {"metadata": {"uid": profile.uid}, "status": _replaced(wanted, live)}
        try:
            answer = await self._client.merge(
                PROFILES, profile.namespace, profile.name, body, manager=MANAGER, subresource="status"
            )
        except ApiError as error:
            if error.status in (404, 409):
                structlog.get_logger().info("profile_gone", error=str(error))
                return
            raise
        self._written[key] = (_hash(wanted), _hash(answer.get("status", {})))
        self._cache.put(PROFILES, answer)

    async def _event(self, profile: ProfileView, reason: str, note: str, kind: str) -> None:
        # Its name makes it one: a pass that was interrupted and made again does not tell it twice.
        name = f"{profile.base}.{profile.uid[:8]}.{profile.generation}.{reason.lower()}"
        key = Key(profile.namespace, profile.name)
        if name in self._announced.setdefault(key, set()):
            return
        manifest: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": profile.namespace},
            "eventTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "reason": reason,
            "type": kind,
            "note": note[:_LONGEST_NOTE],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": profile.name,
                "namespace": profile.namespace,
                "uid": profile.uid,
            },
        }
        try:
            await self._client.create(manifest, manager=MANAGER)
        except ApiError as error:
            if not error.is_conflict:
                raise
        self._announced[key] = {name, *self._announced[key]}


def _replaced(wanted: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """Return the patch from the live to the wanted status; conditions of other writers stay.

    A merge and not an apply: an older CRD prunes fields that it doesn't know from the one and refuses the other.
    """
    ours = {condition["type"] for condition in wanted["conditions"]}
    others = [condition for condition in live.get("conditions", ()) if condition["type"] not in ours]
    removed = dict.fromkeys(live.keys() - wanted.keys())
    return {**removed, **wanted, "conditions": [*wanted["conditions"], *others]}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _same_lists(wanted: dict[str, Any], live: dict[str, Any]) -> bool:
    """Tell whether no pod that is gone is still listed; other writers' conditions may stay."""
    return len(wanted["pods"]) == len(live.get("pods", ()))
