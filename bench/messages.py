"""What a run in a process of its own and its caller write to each other: one JSON object a line, in both directions.

The measuring process calls (`apply`, `event`, `request`, `block`), one call at a time, and waits for the answer of the
call's number; its last line is an outcome. The caller writes the job first, then answers, and `stop` to end the run.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from paceline.bench.engine import EngineAddress
from paceline.bench.plan import Arm, ExperimentPlan
from paceline.bench.protocol import ProgressEvent
from paceline.bench.records import BlockRecord, ExperimentResult, RequestRecord
from paceline.bench.runner import EngineLimits
from paceline.bench.wire import WireModel

LONGEST_LINE_BYTES: Final = 256 * 2**20
"""A request's record holds every chunk's time and every token of its output."""


class Job(WireModel):
    """What to run and where."""

    plan: ExperimentPlan
    address: EngineAddress
    limits: EngineLimits


class Answer(WireModel):
    """The answer to call `number`: the revision of applied settings, or that the call failed."""

    kind: Literal["answer"] = "answer"
    number: int
    revision: int | None = None
    failed: bool = False


class Stop(WireModel):
    """Close the block in progress, hand its records over, and end."""

    kind: Literal["stop"] = "stop"


class Call(WireModel):
    """A call of the settings applier or of the sink, with the one argument that is given."""

    kind: Literal["call"] = "call"
    number: int
    apply: Arm | None = None
    event: ProgressEvent | None = None
    request: RequestRecord | None = None
    block: BlockRecord | None = None


class Finished(WireModel):
    """The run came to its end."""

    kind: Literal["finished"] = "finished"
    result: ExperimentResult


class Failed(WireModel):
    """The run failed by the plan or the engine."""

    kind: Literal["failed"] = "failed"
    error: Literal["PlanError", "EngineError"]
    message: str


class Stopped(WireModel):
    """The run was stopped, or a call of its failed."""

    kind: Literal["stopped"] = "stopped"


ToProcess = Annotated[Answer | Stop, Field(discriminator="kind")]
FromProcess = Annotated[Call | Finished | Failed | Stopped, Field(discriminator="kind")]
TO_PROCESS: Final[TypeAdapter[Answer | Stop]] = TypeAdapter(ToProcess)
FROM_PROCESS: Final[TypeAdapter[Call | Finished | Failed | Stopped]] = TypeAdapter(FromProcess)


def line(message: WireModel) -> bytes:
    """Return a message as its line."""
    return message.model_dump_json(by_alias=True).encode() + b"\n"
