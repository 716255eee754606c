"""What the simulating process is asked and answers: it runs in the engine's environment, the asker need not."""

from typing import Annotated, Final

from pydantic import Field

from paceline.bench.records import Metric
from paceline.bench.simulator.hardware import Hardware, SimulatedWorkload
from paceline.bench.wire import Seconds, WireModel
from paceline.engine_ext.settings import PacingSettings

MAX_ARMS: Final = 64
"""How many arms one request may have."""


class SimulatedArm(WireModel):
    """One setting to simulate; without `pacing` vLLM's own scheduler runs instead of Paceline's."""

    name: str
    pacing: PacingSettings | None = None


class SimulationRequest(WireModel):
    """Hardware, a mixed phase, and the arms that it is simulated under."""

    hardware: Hardware
    workload: SimulatedWorkload
    arms: Annotated[tuple[SimulatedArm, ...], Field(min_length=1, max_length=MAX_ARMS)]


class SimulatedFigures(WireModel):
    """What a simulated mixed phase gave, in virtual time, with the metrics of a measured one.

    `mixed_steps` and `decode_steps` are those from the prompt's arrival to its first token.
    """

    arm: str
    metrics: dict[Metric, float]
    mixed_steps: int
    decode_steps: int
    virtual_seconds: Seconds


class SimulationResult(WireModel):
    """The figures of every arm, by the scheduler of the vLLM `engine_version`.

    `simulated` stands in every answer, so that no figure is taken for a measurement.
    """

    simulated: bool = True
    engine_version: str
    figures: tuple[SimulatedFigures, ...]
