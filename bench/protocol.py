"""What a run needs from its caller: somebody who puts settings live, and somebody who keeps what it measures."""

from enum import StrEnum
from typing import Protocol

from paceline.bench.plan import Arm
from paceline.bench.records import BlockRecord, RequestRecord
from paceline.bench.wire import Seconds, WireModel


class ProgressKind(StrEnum):
    """The moments of a run that a watcher is told of."""

    RUN_STARTED = "RunStarted"
    PROMPT_SIZED = "PromptSized"
    SETTINGS_APPLIED = "SettingsApplied"
    BLOCK_STARTED = "BlockStarted"
    RESIDENTS_STEADY = "ResidentsSteady"
    PREFILL_INJECTED = "PrefillInjected"
    FIRST_TOKEN = "FirstToken"
    BLOCK_FINISHED = "BlockFinished"
    RUN_FINISHED = "RunFinished"


class ProgressEvent(WireModel):
    """One moment of a run, with how much of it is done: `position` of `total` blocks, warm-up included."""

    kind: ProgressKind
    seconds: Seconds
    position: int
    total: int
    message: str
    arm: str | None = None
    block: int | None = None
    warm_up: bool = False


class SettingsApplier(Protocol):
    """Puts an arm's settings live and returns the revision once every engine runs it; raises when it can't."""

    async def __call__(self, arm: Arm) -> int | None:
        """Apply the arm's pacing and coalescing."""
        ...


class RunSink(Protocol):
    """Keeps what a run measures, as it happens, so that a crash or a cancellation loses nothing that was finished.

    The calls of one run never overlap. A call that raises ends the run.
    """

    async def event(self, event: ProgressEvent) -> None:
        """Take note of progress."""
        ...

    async def request(self, record: RequestRecord) -> None:
        """Keep a request that ended, whatever its state."""
        ...

    async def block(self, record: BlockRecord) -> None:
        """Keep a block that ended; its requests were all handed over before."""
        ...
