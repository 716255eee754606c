"""What an experiment measured: raw requests and blocks, and what is concluded from them.

Points in time are seconds since the run's clock origin (`ClockOrigin`) on the monotonic clock; a field that ends in
`_wall_seconds` is Unix time.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paceline.bench.wire import Seconds, WireModel


class Role(StrEnum):
    """What a request does in a workload."""

    RESIDENT = "Resident"
    INJECTED = "Injected"


class RequestState(StrEnum):
    """How a request ended.

    `Finished`: a finish reason and the end-of-stream mark came. `EndedByPlan`: we closed a healthy stream, as planned.
    `Incomplete`: the stream stopped without them. `Failed`: refused, an error event, or the connection broke.
    `Cancelled`: the run was stopped.
    """

    FINISHED = "Finished"
    ENDED_BY_PLAN = "EndedByPlan"
    INCOMPLETE = "Incomplete"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class ClockOrigin(WireModel):
    """Where a run's clock starts: the same instant on both clocks of the client."""

    monotonic_seconds: Seconds
    wall_seconds: Seconds


class ChunkTimeline(WireModel):
    """The token-bearing chunks of one stream, in order of arrival: three sequences of equal length.

    A chunk may carry several tokens (speculative decoding, a late reader), so gaps between chunks are not gaps between
    tokens. `tokens` is 0 where the engine did not say how many a chunk carries.
    """

    received_seconds: tuple[Seconds, ...] = ()
    received_wall_seconds: tuple[Seconds, ...] = ()
    tokens: tuple[int, ...] = ()


class Usage(WireModel):
    """The engine's own account of a request; None where it gave none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class RequestRecord(WireModel):
    """One request, as the client saw it.

    `intended_seconds` is when the workload wanted it sent, `sent_seconds` when its last byte had been written,
    `first_byte_seconds` the response's headers, `first_token_seconds` the first chunk that bears a token.
    `queue_seconds` (arrival to admission) and `prefill_seconds` (admission to first token) are the engine's own times.
    """

    request_id: str
    role: Role
    index: int = 0
    arm: str
    block: int
    warm_up: bool = False
    state: RequestState
    prompt_tokens: int
    max_tokens: int
    intended_seconds: Seconds
    sent_seconds: Seconds | None = None
    first_byte_seconds: Seconds | None = None
    first_token_seconds: Seconds | None = None
    finished_seconds: Seconds
    chunks: ChunkTimeline = ChunkTimeline()
    token_source: str | None = None
    output_tokens: int = 0
    output_token_ids: tuple[int, ...] = ()
    output_logprobs: tuple[float | None, ...] = ()
    output_text_sha256: str = ""
    finish_reason: str | None = None
    http_status: int | None = None
    error: str | None = None
    usage: Usage = Usage()
    queue_seconds: Seconds | None = None
    prefill_seconds: Seconds | None = None

    @property
    def time_to_first_token_seconds(self) -> float | None:
        """From the intended send time to the first token, in seconds: client delay is never hidden in it."""
        return None if self.first_token_seconds is None else self.first_token_seconds - self.intended_seconds


class CounterDelta(WireModel):
    """What the engine's counters moved by during a block, summed over its engine cores.

    None where the engine does not count it. `reset` tells that a counter started anew in between (the engine was
    restarted): the deltas then mean nothing.
    """

    reset: bool = False
    preemptions: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None


class PrefillSteps(WireModel):
    """The engine steps of the injected prompt's prefill, from its first chunk to its last, told by the admin port.

    `chunks` of the `steps` carried `tokens` of the prompt; the others held it back and took
    `mean_other_step_seconds` each. `revisions` are those of the settings that these steps ran. `complete` is False
    where the engine's record of steps no longer held them all.
    """

    complete: bool
    chunks: int
    tokens: int
    steps: int
    mean_chunk_step_seconds: Seconds | None = None
    mean_other_step_seconds: Seconds | None = None
    revisions: tuple[int, ...] = ()

    def cycle_seconds(self, interval: int) -> float | None:
        """Return how long a chunk's step and the `interval` - 1 steps after it take; None where one kind never ran."""
        if not self.mean_chunk_step_seconds or not self.mean_other_step_seconds:
            return None
        return self.mean_chunk_step_seconds + (interval - 1) * self.mean_other_step_seconds


class ClientLag(WireModel):
    """How late the client itself was in the measured windows, in seconds.

    The longest that its event loop overslept, and the longest that a request was sent after it was due.
    """

    max_loop_lag_seconds: Seconds = 0.0
    max_send_lag_seconds: Seconds = 0.0


class Metric(StrEnum):
    """What is measured once a block, with its unit in the name. A rate is that of one resident, the mean over all."""

    RESIDENT_RATE_BEFORE = "residentTokensPerSecondBefore"
    RESIDENT_RATE_DURING = "residentTokensPerSecondDuring"
    TIME_TO_FIRST_TOKEN = "timeToFirstTokenSeconds"
    ADMISSION_TO_FIRST_TOKEN = "admissionToFirstTokenSeconds"
    LONGEST_CHUNK_GAP_DURING = "longestResidentChunkGapDuringSeconds"
    LONGEST_TOKEN_GAP_DURING = "longestResidentTokenGapDuringSeconds"

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better: rates are, times are not."""
        return self in (Metric.RESIDENT_RATE_BEFORE, Metric.RESIDENT_RATE_DURING)


class BlockRecord(WireModel):
    """One block: an arm's settings, one injection, and what came of it.

    The window before runs from `steady_seconds` to `injected_seconds`, the window during from there to
    `first_token_seconds`. `per_resident_before` and `per_resident_during` are tokens per second of each resident.
    `problems` says why the block does not count; it is empty for a good one.
    """

    arm: str
    block: int
    position: int
    warm_up: bool = False
    revision: int | None = None
    started_seconds: Seconds
    started_wall_seconds: Seconds
    steady_seconds: Seconds | None = None
    injected_seconds: Seconds | None = None
    first_token_seconds: Seconds | None = None
    ended_seconds: Seconds
    injected_prompt_tokens: int
    planned_requests: int
    completed_requests: int
    per_resident_before: tuple[float, ...] = ()
    per_resident_during: tuple[float, ...] = ()
    metrics: dict[Metric, float] = Field(default_factory=dict)
    counters: CounterDelta | None = None
    injected_cached_tokens: int | None = None
    prefill_steps: PrefillSteps | None = None
    lag: ClientLag = ClientLag()
    problems: tuple[str, ...] = ()


class AuditOutcome(StrEnum):
    """`NotApplicable` is never a pass: the message says what could not be seen, and why."""

    PASSED = "Passed"
    FAILED = "Failed"
    NOT_APPLICABLE = "NotApplicable"


class AuditResult(WireModel):
    """One check of whether the numbers may be believed; `arm` is None where it speaks of the whole run."""

    name: str
    outcome: AuditOutcome
    message: str
    arm: str | None = None


class Estimate(WireModel):
    """A point estimate with its bootstrap interval, and the number of blocks that it rests on."""

    value: float
    low: float
    high: float
    blocks: Annotated[int, Field(ge=1)]


class ArmResult(WireModel):
    """One arm's medians over its blocks. An arm with fewer completions than planned is not valid.

    `predicted` is what the pacing formula gives for the arm from the baseline's medians; empty where it does not apply.
    """

    arm: str
    valid: bool
    reasons: tuple[str, ...] = ()
    injected_prompt_tokens: int
    planned_requests: int
    completed_requests: int
    metrics: dict[Metric, Estimate] = Field(default_factory=dict)
    predicted: dict[Metric, float] = Field(default_factory=dict)


class Verdict(StrEnum):
    """What an interval says of an arm against the baseline."""

    BETTER = "Better"
    WORSE = "Worse"
    NO_DIFFERENCE = "NoDifference"
    INVALID = "Invalid"


class Comparison(WireModel):
    """An arm's metric as a ratio to the baseline's, paired block by block; None where an arm is not valid."""

    arm: str
    baseline: str
    metric: Metric
    ratio: Estimate | None
    verdict: Verdict
    reason: str


class EngineFingerprint(WireModel):
    """What was measured: the engine's version, its model and its limits, as far as it tells them."""

    version: str | None = None
    model: str
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    cache_config: dict[str, str] = Field(default_factory=dict)


class ExperimentResult(WireModel):
    """Everything that is concluded from a run."""

    engine: EngineFingerprint
    clock: ClockOrigin
    arms: tuple[ArmResult, ...]
    comparisons: tuple[Comparison, ...]
    audits: tuple[AuditResult, ...]

    @property
    def trustworthy(self) -> bool:
        """Whether no audit failed and every arm is valid."""
        return all(arm.valid for arm in self.arms) and all(
            audit.outcome is not AuditOutcome.FAILED for audit in self.audits
        )
