"""The status of an InferenceProfile: what the operator observed, written once a pass.

Unlike the spec these types take unknown fields, since an older reader may meet the status of a newer operator.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from paceline.operator.api.v1alpha1 import ShortText

Count = Annotated[int, Field(ge=0)]
Message = Annotated[str, StringConstraints(max_length=2_048)]
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
MAX_PODS = 512


class StatusModel(BaseModel):
    """Base of the status types: camelCase on the wire, unknown fields ignored, values immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


class ConditionType(StrEnum):
    """What a condition speaks about."""

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    CONFIG_APPLIED = "ConfigApplied"
    SCHEDULED = "Scheduled"
    MODEL_LOADED = "ModelLoaded"
    ENGINE_COMPATIBLE = "EngineCompatible"


class Condition(StatusModel):
    """One observation of the profile's state."""

    type: ShortText
    """Ready, Available, Progressing, ConfigApplied, Scheduled, ModelLoaded or EngineCompatible."""
    status: Literal["True", "False", "Unknown"]
    """Whether the observation holds."""
    reason: ShortText
    """Why, in one word for programs."""
    message: Message = ""
    """Why, in a sentence for people."""
    observed_generation: Count = 0
    """Generation of the profile that was observed."""
    last_transition_time: Timestamp
    """When the status last changed."""


class PodStatus(StatusModel):
    """One engine pod and the live settings that it reports."""

    name: ShortText
    """Name of the pod."""
    node: Annotated[str, StringConstraints(max_length=253)] = ""
    """Node that runs the pod; empty while it has none."""
    ready: Literal["True", "False"] = "False"
    """Whether the pod serves requests."""
    applied: Literal["True", "False"] = "False"
    """Whether the pod runs the profile's current revision of the live settings."""
    epoch: Count = 0
    """Epoch of the settings that the pod runs."""
    revision: Count = 0
    """Revision of the settings that the pod runs."""
    restarts: Count = 0
    """Restarts of the engine's container."""
    message: Message = ""
    """What keeps the pod from being ready or up to date."""
    page_gate: Message = ""
    """What the page gate does on this pod, and the reasons why it leaves calls to the engine; empty where disabled."""
    uncoalesced: Message = ""
    """Why this pod coalesces nothing though the profile asks for it; empty where it does, and where it is not asked."""


class ChangeKind(StrEnum):
    """What a change of a profile does to its engines."""

    HOT = "Hot"
    COLD = "Cold"
    NONE = "None"


class ChangeStatus(StatusModel):
    """The last change of the spec that the operator acted on."""

    kind: ChangeKind
    """Hot: swapped between two engine steps. Cold: new engines. None: nothing for the engines."""
    message: Message
    """The fields that changed, and what follows from it."""
    generation: Count
    """Generation of the profile that brought the change."""


class InferenceProfileStatus(StatusModel):
    """What the operator observed."""

    observed_generation: Count = 0
    """Generation of the profile that this status describes."""
    epoch: Count = 0
    """Epoch of the live settings: raised by each new leader of the operator."""
    revision: Count = 0
    """Revision of the live settings: raised by each hot change."""
    pacing: Annotated[str, StringConstraints(max_length=64)] = ""
    """The profile's pacing in short, such as Fixed/4 or SLO/80ms."""
    replicas: Count = 0
    """Engine pods that exist."""
    ready_replicas: Count = 0
    """Engine pods that serve requests."""
    updated_replicas: Count = 0
    """Engine pods of the current template."""
    selector: Annotated[str, StringConstraints(max_length=512)] = ""
    """Label selector of the engine pods, for autoscalers."""
    endpoint: Annotated[str, StringConstraints(max_length=512)] = ""
    """Address of the OpenAI API inside the cluster."""
    last_change: ChangeStatus | None = None
    template_update: Message = ""
    """Set when this operator would build newer engine pods; they are taken with the next cold change or on request."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    """Observations, each with its reason."""
    pods: Annotated[
        list[PodStatus],
        Field(
            max_length=MAX_PODS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = []
    """The engine pods."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of that type, or None where it was never observed."""
        return next((condition for condition in self.conditions if condition.type == kind), None)
