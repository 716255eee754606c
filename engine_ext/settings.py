"""The live knobs of a running engine: the one definition that every room shares.

This module needs pydantic only. Importing it must never pull in torch or vLLM, since the operator, the control API
and the command line run without them.
"""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

MAX_FENCE: Final = 2**53 - 1
"""The largest epoch and revision: what every JSON reader and the engine's own messages carry exactly."""

MIN_SPAN_TOKENS: Final = 64
MAX_SPAN_TOKENS: Final = 131_072
MAX_INTERVAL_STEPS: Final = 1024
"""Upper bound of a pacing interval, so that no prefill is ever held for longer than that many engine steps."""


class LiveModel(BaseModel):
    """Base of every live setting: camelCase on the wire, unknown fields refused, values immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class PacingMode(StrEnum):
    """How prefill chunks are released while requests are decoding."""

    DISABLED = "Disabled"
    FIXED = "Fixed"
    SLO = "SLO"


class SloPrecedence(StrEnum):
    """Which promise is kept when the output token time and the prefill delay can't both be."""

    PREFILL_DELAY = "PrefillDelay"
    OUTPUT_TOKEN_TIME = "OutputTokenTime"


class SloSettings(LiveModel):
    """A promise to the residents, and a bound on what it may cost the newcomer.

    `time_per_output_token_milliseconds` is the longest mean gap between two output tokens of one request.
    `max_prefill_delay_seconds` counts from the arrival of a prompt to the end of its prefill.
    """

    time_per_output_token_milliseconds: Annotated[int, Field(strict=True, ge=1, le=60_000)]
    max_prefill_delay_seconds: Annotated[int, Field(strict=True, ge=1, le=3_600)] = 60
    precedence: SloPrecedence = SloPrecedence.PREFILL_DELAY


class PacingSettings(LiveModel):
    """Prefill pacing.

    With mode `Fixed`, at most one of `interval` consecutive engine steps carries prefill tokens while any request is
    decoding; 0 and 1 leave the engine unpaced. With mode `SLO`, `slo` decides when a prefill chunk is released.
    """

    mode: PacingMode = PacingMode.DISABLED
    interval: Annotated[int, Field(strict=True, ge=0, le=MAX_INTERVAL_STEPS)] = 4
    slo: SloSettings | None = None

    @model_validator(mode="after")
    def _slo_needs_its_promise(self) -> Self:
        if self.mode is PacingMode.SLO and self.slo is None:
            message = "mode SLO needs the field slo, at least slo.timePerOutputTokenMilliseconds"
            raise ValueError(message)
        return self

    @property
    def effective_interval(self) -> int:
        """The interval in steps that mode `Fixed` imposes; 1 where prefills are not paced by a constant."""
        return max(1, self.interval) if self.mode is PacingMode.FIXED else 1


def _says_its_mode(pacing: PacingSettings) -> PacingSettings:
    if pacing.model_fields_set and "mode" not in pacing.model_fields_set:
        message = "mode is left out, which would mean Disabled: say Fixed with an interval, or SLO with slo"
        raise ValueError(message)
    return pacing


DeclaredPacing = Annotated[PacingSettings, AfterValidator(_says_its_mode)]
"""Pacing as a caller sends it: an interval or a promise without the mode that would use it is refused."""


class FinalChunk(StrEnum):
    """Whether the last, off-grid part of a prompt runs in one pass."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class CoalescingAdmission(StrEnum):
    """When a final chunk may be coalesced: one prefill in flight beside decoders, or the request all alone."""

    SINGLE_PREFILL = "SinglePrefill"
    EXCLUSIVE = "Exclusive"


class CoalescingSettings(LiveModel):
    """Final-chunk coalescing: the largest span in tokens, and the company in which it may run."""

    final_chunk: FinalChunk = FinalChunk.DISABLED
    max_span_tokens: Annotated[int, Field(strict=True, ge=MIN_SPAN_TOKENS, le=MAX_SPAN_TOKENS)] = 8_192
    admission: CoalescingAdmission = CoalescingAdmission.SINGLE_PREFILL


def _says_its_final_chunk(coalescing: CoalescingSettings) -> CoalescingSettings:
    given = coalescing.model_fields_set
    if given and "final_chunk" not in given:
        raise ValueError("give finalChunk too, Enabled or Disabled: without it nothing would be coalesced")
    return coalescing


DeclaredCoalescing = Annotated[CoalescingSettings, AfterValidator(_says_its_final_chunk)]
"""Coalescing as a caller sends it: a limit or an admission without the switch that would use it is refused."""


class LiveSettings(LiveModel):
    """Everything an engine swaps between two steps, with the fence that orders it.

    `epoch` grows with every new leader of the operator, `revision` with every hot change. An engine refuses settings
    older than those it runs, so a leader that lost its lease can't undo the work of its successor.
    """

    epoch: Annotated[int, Field(strict=True, ge=0, le=MAX_FENCE)] = 0
    revision: Annotated[int, Field(strict=True, ge=0, le=MAX_FENCE)] = 0
    pacing: PacingSettings = PacingSettings()
    coalescing: CoalescingSettings = CoalescingSettings()

    @property
    def fence(self) -> tuple[int, int]:
        """The order of settings: first the leader's epoch, then the revision."""
        return self.epoch, self.revision

    def same_knobs(self, other: "LiveSettings") -> bool:
        """Tell whether both ask the engine for the same behaviour, whatever their fences."""
        return (self.pacing, self.coalescing) == (other.pacing, other.coalescing)


class Verdict(StrEnum):
    """What an engine does with settings that reach it."""

    APPLY = "Apply"
    SAME = "Same"
    STALE = "Stale"
    CONFLICT = "Conflict"


def judge(running: LiveSettings, incoming: LiveSettings) -> Verdict:
    """Decide by epoch and revision whether `incoming` replaces `running`.

    Settings with the running fence are `Same` when they repeat the running knobs (a retry) and a `Conflict` when they
    don't: two writers used one revision, and the engine can't tell which of them is right.
    """
    if incoming.fence > running.fence:
        return Verdict.APPLY
    if incoming.fence < running.fence:
        return Verdict.STALE
    return Verdict.SAME if incoming.same_knobs(running) else Verdict.CONFLICT
