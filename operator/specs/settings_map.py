"""The ConfigMap with the live settings: what an engine starts with, and the ledger of revisions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import ValidationError

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.status import ChangeStatus
from paceline.operator.api.v1alpha1 import GROUP
from paceline.operator.specs.engine_command import settings_document
from paceline.operator.specs.subject import Manifest, Subject

SETTINGS_KEY: Final = "settings.json"
CHANGE_ANNOTATION: Final = f"{GROUP}/last-change"


@dataclass(frozen=True)
class Ledger:
    """What the ConfigMap holds: the settings in force, and the change of the profile that was last acted on.

    `version` is the ConfigMap's resourceVersion: a write names it, so that two writers never both succeed.
    """

    settings: LiveSettings
    change: ChangeStatus | None
    version: str

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> Self | None:
        """Read the ledger from its ConfigMap; None where someone spoilt it."""
        metadata = manifest["metadata"]
        change = metadata.get("annotations", {}).get(CHANGE_ANNOTATION)
        try:
            settings = LiveSettings.model_validate_json(manifest.get("data", {}).get(SETTINGS_KEY, ""))
            parsed = None if change is None else ChangeStatus.model_validate_json(change)
        except ValidationError:
            return None
        return cls(settings, parsed, metadata.get("resourceVersion", ""))


def settings_map(subject: Subject, settings: LiveSettings, change: ChangeStatus | None) -> Manifest:
    """Return the ConfigMap that engine pods mount and read when they start."""
    annotations = {} if change is None else {CHANGE_ANNOTATION: json.dumps(change.model_dump(by_alias=True))}
    return subject.manifest(
        "v1",
        "ConfigMap",
        subject.settings_name,
        annotations=annotations,
        data={SETTINGS_KEY: settings_document(settings)},
    )
