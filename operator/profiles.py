"""Reading a profile as the API server hands it out."""

from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from paceline.operator.api.status import InferenceProfileStatus
from paceline.operator.api.v1alpha1 import InferenceProfileSpec
from paceline.operator.config import EngineConfig
from paceline.operator.specs.names import base_name
from paceline.operator.specs.subject import Subject
from paceline.operator.troubles import Trouble

_MOST_ERRORS = 5


@dataclass(frozen=True)
class ProfileView:
    """A profile: its identity, its former status, and its spec or why that can't be understood."""

    namespace: str
    name: str
    uid: str
    generation: int
    annotations: dict[str, str]
    is_leaving: bool
    spec: InferenceProfileSpec | None
    replicas: int
    previous: InferenceProfileStatus
    raw_status: dict[str, Any]
    trouble: Trouble | None

    @property
    def base(self) -> str:
        """Name of the profile's Service and workload."""
        return base_name(self.name)

    def subject(self, config: EngineConfig) -> Subject | None:
        """Return what the builders start from, or None where the spec can't be understood."""
        return None if self.spec is None else Subject(self.namespace, self.name, self.uid, self.spec, config)

    @classmethod
    def read(cls, manifest: dict[str, Any]) -> Self:
        """Read a profile; one that can't be understood still has its identity and status."""
        metadata = manifest["metadata"]
        raw = manifest.get("spec", {})
        spec, trouble = _spec(raw)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            annotations=metadata.get("annotations", {}),
            is_leaving="deletionTimestamp" in metadata,
            spec=spec,
            replicas=spec.engine.replicas if spec is not None else raw.get("engine", {}).get("replicas", 1),
            previous=_status(manifest.get("status", {})),
            raw_status=manifest.get("status", {}),
            trouble=trouble,
        )


def _spec(raw: Any) -> tuple[InferenceProfileSpec | None, Trouble | None]:
    try:
        return InferenceProfileSpec.model_validate(raw), None
    except ValidationError as error:
        told = "; ".join(
            f"spec.{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
            for problem in error.errors()[:_MOST_ERRORS]
        )
        message = (
            f"this operator does not understand the profile, and leaves its engines as they are: {told}; "
            "correct it, or upgrade the operator where the field is newer than it"
        )
        return None, Trouble("ProfileNotUnderstood", message)


def _status(raw: Any) -> InferenceProfileStatus:
    try:
        return InferenceProfileStatus.model_validate(raw)
    except ValidationError:
        # Written by another version: observed anew; the ledger keeps what must not be lost.
        return InferenceProfileStatus()
