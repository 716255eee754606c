"""What keeps an engine pod from serving, in the words of the part that stopped it. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from paceline.operator.pods import PodView

_IMAGE_REASONS: Final = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
)
_MODEL_NOT_FOUND: Final = re.compile(
    r"Repository Not Found|RepositoryNotFoundError|GatedRepoError|RevisionNotFoundError"
    r"|is not a local folder and is not a valid model identifier"
    r"|does not appear to have (a file named|files named)"
    r"|Invalid repository ID or local directory specified"
    r"|Repo id must"
    r"|Can't load the configuration of"
    r"|[Nn]o model weights|Cannot find any model weights"
    r"|model path .* does not exist"
)
_LONGEST_LINE: Final = 400


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not serve: a reason for programs, a sentence for people; `is_fault` unless it is just starting."""

    reason: str
    message: str
    is_fault: bool = True


def trouble_of(pod: PodView) -> Trouble | None:
    """Return why a pod does not serve, or None where it does."""
    if pod.ready:
        return None
    if pod.unscheduled_reason:
        return Trouble(pod.unscheduled_reason, f"{pod.name}: {pod.unscheduled_message}")
    container = pod.container
    if container.waiting_reason in _IMAGE_REASONS:
        return Trouble("ImagePullBackOff", f"{pod.name}: {container.waiting_message or container.waiting_reason}")
    if container.exit_code is not None:
        return _crash(pod)
    if container.waiting_reason not in ("", "ContainerCreating", "PodInitializing"):
        return Trouble(container.waiting_reason, f"{pod.name}: {container.waiting_message}")
    if pod.phase == "Failed":
        return Trouble(pod.reason or "PodFailed", f"{pod.name}: {pod.message}")
    if container.started:
        return Trouble("Loading", f"{pod.name}: the engine runs and is not ready yet", is_fault=False)
    return Trouble(
        "Starting",
        f"{pod.name}: the container is being created; if it lasts, `kubectl describe pod {pod.name}` tells why",
        is_fault=False,
    )


def last_line(text: str) -> str:
    """Return the last line of a log's tail that says something, shortened to 400 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-_LONGEST_LINE:] if lines else ""


def _crash(pod: PodView) -> Trouble:
    container = pod.container
    times = f"{container.restarts} restart{'s' if container.restarts != 1 else ''}"
    if container.ended_reason == "OOMKilled":
        return Trouble(
            "OOMKilled",
            f"{pod.name}: the engine was killed for using more than its memory limit ({times}); raise "
            "spec.engine.resources.limits.memory, or lower the KV cache's size",
        )
    found = _MODEL_NOT_FOUND.search(container.ended_message)
    if found is not None:
        return Trouble("ModelNotFound", f"{pod.name}: {_line_around(container.ended_message, found)} ({times})")
    line = last_line(container.ended_message)
    said = f"its last line: {line}" if line else "it left no line"
    return Trouble(
        "CrashLoopBackOff", f"{pod.name}: the engine ended with status {container.exit_code} ({times}); {said}"
    )


def _line_around(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    return text[start : len(text) if end < 0 else end].strip()[:_LONGEST_LINE]
