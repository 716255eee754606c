"""Experiments, as the API shows them; what was measured keeps the types of `paceline.bench`."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from paceline.bench.plan import ExperimentPlan
from paceline.bench.protocol import ProgressEvent
from paceline.bench.records import ArmResult, BlockRecord, EngineFingerprint, ExperimentResult, RequestRecord
from paceline.control_api.schemas.common import Instant, Schema
from paceline.engine_ext.settings import CoalescingSettings, PacingSettings
from paceline.operator.api.v1alpha1 import InferenceProfile


class ExperimentStatus(StrEnum):
    """Where an experiment stands.

    `Interrupted`: the control API that ran it ended; what was measured until then is kept.
    """

    QUEUED = "Queued"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    INTERRUPTED = "Interrupted"

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self not in (ExperimentStatus.QUEUED, ExperimentStatus.RUNNING)


class ExperimentSummary(Schema):
    """An experiment in a list, and what a watcher is told at each change.

    `progress` is the latest moment of the run. `failure` says why it failed or was interrupted. `version` grows with
    every change.
    """

    id: str
    name: str
    profile: str
    status: ExperimentStatus
    created_at: Instant
    started_at: Instant | None = None
    ended_at: Instant | None = None
    seed: int
    progress: ProgressEvent | None = None
    failure: str | None = None
    cancel_requested: bool = False
    version: int


class ArmDetail(Schema):
    """One arm: the settings it runs, and its medians once the experiment has ended."""

    name: str
    pacing: PacingSettings
    coalescing: CoalescingSettings
    result: ArmResult | None = None


class ExperimentDetail(ExperimentSummary):
    """One experiment, whole but for its raw requests.

    `result` holds the arms' medians, the comparisons with their verdicts, and the audits; it is null until the run has
    ended. `trustworthy` tells whether no audit failed and every arm is valid.
    """

    plan: ExperimentPlan
    profile_snapshot: InferenceProfile
    engine: EngineFingerprint | None = None
    arms: list[ArmDetail]
    blocks: list[BlockRecord]
    result: ExperimentResult | None = None
    trustworthy: bool | None = None


class StoredRequest(Schema):
    """One request with the raw timestamps of its chunks; `id` orders the requests as they were stored."""

    id: int
    record: RequestRecord


class BlockTimeline(Schema):
    """The mean token rate of one block's residents over time, in tokens per second of one resident.

    Rate i holds from `start_seconds + i * bin_seconds` on, where second 0 is the injection. The prefill lasts from 0
    to `first_token_seconds`.
    """

    arm: str
    block: int
    warm_up: bool
    start_seconds: float
    bin_seconds: float
    first_token_seconds: float | None
    tokens_per_second: list[float]


class Timeline(Schema):
    """What a plot of an experiment needs."""

    blocks: Annotated[list[BlockTimeline], Field(description="One entry a block that reached its injection")]


PLAN_EXAMPLES: dict[str, Any] = {
    "pacing": {
        "summary": "Two residents, a cold prompt of 8192 tokens, unpaced against N=4",
        "value": {
            "name": "unpaced against N=4",
            "workload": {"kind": "MixedPhase", "residents": 2, "injectedPromptTokens": 8192},
            "arms": [{"name": "unpaced"}, {"name": "n4", "pacing": {"mode": "Fixed", "interval": 4}}],
            "blocks": 2,
        },
    }
}
