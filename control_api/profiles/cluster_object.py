"""A profile as the API server hands it out, read for the control API. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self

from pydantic import ValidationError

from paceline.control_api.errors import ProblemError
from paceline.control_api.profiles.base import LiveState, ProfileKey, StoredProfile, in_force
from paceline.control_api.profiles.ownership import SET_BY, superseded_by
from paceline.control_api.schemas.profiles import EngineStatus
from paceline.engine_ext.settings import CoalescingSettings, LiveSettings, PacingSettings
from paceline.operator.api.status import ConditionType, InferenceProfileStatus, PodStatus
from paceline.operator.api.v1alpha1 import InferenceProfile

Manifest = dict[str, Any]

_UNSEEN: Final = "the operator has not acted on the change yet; is it running?"


@dataclass(frozen=True)
class ClusterProfile:
    """A profile's manifest with its live settings and its status read."""

    manifest: Manifest
    pacing: PacingSettings
    coalescing: CoalescingSettings
    status: InferenceProfileStatus

    @classmethod
    def read(cls, manifest: Manifest) -> Self:
        """Read a manifest. Raises ProblemError where a newer version's fields are not understood."""
        spec = manifest.get("spec", {})
        try:
            # Another manager's promise without effect can't be applied away, and must not make settings differ.
            pacing = in_force(PacingSettings.model_validate(spec.get("pacing", {})))
            coalescing = CoalescingSettings.model_validate(spec.get("coalescing", {}))
        except ValidationError as error:
            raise _not_understood(manifest, error) from error
        try:
            status = InferenceProfileStatus.model_validate(manifest.get("status", {}))
        except ValidationError:
            # Of another version's operator: as if nothing had been observed.
            status = InferenceProfileStatus()
        return cls(manifest, pacing, coalescing, status)

    @property
    def key(self) -> ProfileKey:
        """The namespace and name."""
        return ProfileKey(self.manifest["metadata"]["namespace"], self.manifest["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The identity, which a profile made anew under the name does not share."""
        return str(self.manifest["metadata"]["uid"])

    @property
    def version(self) -> str:
        """The version of the whole object, its status included."""
        return str(self.manifest["metadata"]["resourceVersion"])

    @property
    def is_observed(self) -> bool:
        """Whether the operator has acted on the profile as it stands."""
        return self.status.observed_generation >= int(self.manifest["metadata"]["generation"])

    @property
    def settings(self) -> LiveSettings:
        """The wanted knobs with the operator's last revision; the epoch is between it and its engines."""
        return LiveSettings(revision=self.status.revision, pacing=self.pacing, coalescing=self.coalescing)

    @property
    def etag(self) -> str:
        """The entity tag of the wanted settings: other fields and the status leave it as it is."""
        knobs = [self.uid, *(part.model_dump(mode="json") for part in (self.pacing, self.coalescing))]
        return f'"{hashlib.sha256(json.dumps(knobs, sort_keys=True).encode()).hexdigest()[:16]}"'

    @property
    def refusal(self) -> str | None:
        """Why an engine can't run the wanted settings; None where none said so."""
        condition = self.status.condition(ConditionType.CONFIG_APPLIED)
        refused = self.is_observed and condition is not None and condition.reason == "SettingsRefused"
        return condition.message if refused and condition is not None else None

    @property
    def state(self) -> LiveState:
        """The wanted settings, and what each engine runs as the operator last saw it."""
        return LiveState(
            settings=self.settings,
            engines=tuple(self._engine(pod) for pod in self.status.pods),
            tag=self.etag,
            superseded_by={part: ", ".join(by) for part in SET_BY if (by := superseded_by(self.manifest, part))},
            note=self._note,
        )

    def stored(self) -> StoredProfile:
        """Return the profile as the routes show it. Raises ProblemError where its spec is not understood."""
        metadata = {name: value for name, value in self.manifest["metadata"].items() if name != "managedFields"}
        document = {**self.manifest, "metadata": metadata}
        document.pop("status", None)
        try:
            return StoredProfile(self.key, InferenceProfile.model_validate(document), self.state)
        except ValidationError as error:
            raise _not_understood(self.manifest, error) from error

    @property
    def _note(self) -> str:
        if not self.is_observed:
            return _UNSEEN
        ready = self.status.condition(ConditionType.READY)
        return ready.message if ready is not None else ""

    def _engine(self, pod: PodStatus) -> EngineStatus:
        compatible = self.status.condition(ConditionType.ENGINE_COMPATIBLE)
        truth = None if compatible is None else {"True": True, "False": False}.get(compatible.status)
        odd = compatible.message if compatible is not None and truth is False else ""
        messages = [pod.message, odd] if self.is_observed else [_UNSEEN, pod.message, odd]
        return EngineStatus(
            name=pod.name,
            revision=pod.revision or None,
            applied=self.is_observed and pod.applied == "True",
            # The condition speaks for all of them: which of several can't be paced is in its message.
            paced=None if truth is False and len(self.status.pods) > 1 else truth,
            message="; ".join(filter(None, messages)) or None,
            uncoalesced=pod.uncoalesced or None,
            page_gate=pod.page_gate or None,
        )


def _not_understood(manifest: Mapping[str, Any], error: ValidationError) -> ProblemError:
    metadata = manifest["metadata"]
    issues = error.errors(include_url=False, include_input=False)
    told = "; ".join(f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in issues[:5])
    detail = (
        f"this control API does not understand the profile {metadata['namespace']}/{metadata['name']}: {told}. "
        "Upgrade it where a field is newer than it; kubectl shows and changes the profile as it is"
    )
    return ProblemError(HTTPStatus.BAD_GATEWAY, "profile-not-understood", detail)
