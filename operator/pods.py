"""What the operator keeps of an engine pod: the few fields that its status depends on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from paceline.operator.specs.names import ROLE_LABEL, TEMPLATE_LABEL

ENGINE_CONTAINER = "engine"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The engine's container: its present state and how its last run ended."""

    ready: bool = False
    started: bool = False
    restarts: int = 0
    waiting_reason: str = ""
    waiting_message: str = ""
    ended_reason: str = ""
    ended_message: str = ""
    exit_code: int | None = None
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """An engine pod."""

    name: str
    uid: str
    template: str
    role: str
    created: str
    ip: str = ""
    node: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    ready: bool = False
    leaving: bool = False
    unscheduled_reason: str = ""
    unscheduled_message: str = ""
    container: ContainerView = ContainerView()

    @property
    def serves(self) -> bool:
        """Tell whether the pod answers requests itself; the workers of a multi-node engine don't."""
        return self.role != "worker"

    @property
    def counts(self) -> bool:
        """Tell whether the pod is one of the profile's engines, neither leaving nor ended."""
        return not self.leaving and self.phase not in ("Succeeded", "Failed")

    @property
    def run(self) -> tuple[str, int, str]:
        """What tells one run of the engine's process from another."""
        return self.uid, self.container.restarts, self.container.container_id

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> Self:
        """Read a pod as the API server hands it out."""
        metadata, status = manifest["metadata"], manifest.get("status", {})
        labels = metadata.get("labels", {})
        conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
        scheduled = conditions.get("PodScheduled", {})
        unscheduled = scheduled if scheduled.get("status") == "False" else {}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            template=labels.get(TEMPLATE_LABEL, ""),
            role=labels.get(ROLE_LABEL, ""),
            created=metadata.get("creationTimestamp", ""),
            ip=status.get("podIP", ""),
            node=manifest.get("spec", {}).get("nodeName", ""),
            phase=status.get("phase", ""),
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            ready=conditions.get("Ready", {}).get("status") == "True",
            leaving="deletionTimestamp" in metadata,
            unscheduled_reason=unscheduled.get("reason", ""),
            unscheduled_message=unscheduled.get("message", ""),
            container=_container(status),
        )


def _container(status: Mapping[str, Any]) -> ContainerView:
    found = next((item for item in status.get("containerStatuses", ()) if item["name"] == ENGINE_CONTAINER), None)
    if found is None:
        return ContainerView()
    state, last = found.get("state", {}), found.get("lastState", {})
    waiting = state.get("waiting", {})
    ended = state.get("terminated") or last.get("terminated") or {}
    return ContainerView(
        ready=bool(found.get("ready")),
        started="running" in state,
        restarts=int(found.get("restartCount", 0)),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ended_reason=ended.get("reason", ""),
        ended_message=ended.get("message", ""),
        exit_code=ended.get("exitCode"),
        container_id=found.get("containerID", ""),
    )
