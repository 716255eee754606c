"""How far a starting engine is, read from its log, and whether it answers yet."""

from dataclasses import dataclass
from typing import Final

import httpx

STAGES: Final[tuple[tuple[str, str], ...]] = (
    ("non-default args", "reading the model's configuration"),
    ("Using max model len", "starting the engine's processes"),
    ("Starting to load model", "loading the model"),
    ("Loading weights took", "profiling memory"),
    ("KV cache size", "preparing the KV cache"),
    ("init engine (profile", "warming up"),
    ("Capturing CUDA graph", "warming up"),
    ("Starting vLLM server", "opening the API"),
)
"""A part of a line of vLLM's log, and the stage that begins with it; in the order in which they come."""

FIRST_STAGE: Final = "starting Python and vLLM"


@dataclass(frozen=True)
class Progress:
    """The stage that a starting engine is in. `position` grows from stage to stage."""

    position: int = -1
    stage: str = FIRST_STAGE

    def after(self, line: str) -> "Progress":
        """Return the progress once `line` of the log was seen; it never goes back."""
        for position in range(len(STAGES) - 1, self.position, -1):
            marker, stage = STAGES[position]
            if marker in line:
                return Progress(position, stage)
        return self


def answers(client: httpx.Client, url: str) -> bool:
    """Tell whether a health address answers with success."""
    try:
        return client.get(url).is_success
    except httpx.TransportError:
        return False
