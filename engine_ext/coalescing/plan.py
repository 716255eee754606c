"""Which span of a prompt runs in one pass, and at which positions its recurrent state is kept. Pure arithmetic.

Source: the continuation-coalescing follow-up for GLM on four DGX Sparks (facts only), with its worked spans.
A position p is a count of tokens: the state at p is the state after the first p tokens of the prompt.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

MAX_TARGETS: Final = 4
"""Most states that one span exports."""


class Refusal(StrEnum):
    """Why a span is not planned. The engine then splits it as stock vLLM does."""

    UNALIGNED_START = "UnalignedStart"
    SPAN_TOO_LONG = "SpanTooLong"
    UNALIGNED_END = "UnalignedEnd"
    NOTHING_TO_EXPORT = "NothingToExport"
    TOO_MANY_STOPS = "TooManyStops"
    UNALIGNED_CUT = "UnalignedCut"
    OTHER_PREFILL = "OtherPrefill"
    NOT_ALONE = "NotAlone"
    PREEMPTED = "Preempted"
    NOT_A_FRESH_PROMPT = "NotAFreshPrompt"
    MULTIMODAL = "Multimodal"
    EXTERNAL_TOKENS = "ExternalTokens"
    NO_FREE_BLOCKS = "NoFreeBlocks"
    SPECULATIVE_DECODING = "SpeculativeDecoding"
    UNSUPPORTED_ENGINE = "UnsupportedEngine"


@dataclass(frozen=True, slots=True)
class Grids:
    """The two grids, in tokens, on which a prompt's states are worth keeping.

    A prompt keeps its last state on the fine grid (one cache block) and on the coarse one. With `keeps_previous` it
    keeps the one before each as well: a reader under speculative decoding gives up its last matching block.
    """

    fine_tokens: int
    coarse_tokens: int
    keeps_previous: bool

    def retained(self, prompt_tokens: int) -> tuple[int, ...]:
        """Return the positions kept for a prompt, ascending, each below its last token."""
        bound = prompt_tokens - 1
        steps = (0, 1) if self.keeps_previous else (0,)
        kept = {bound // grid * grid - step * grid for grid in (self.fine_tokens, self.coarse_tokens) for step in steps}
        return tuple(sorted(position for position in kept if position > 0))


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """Bounds of a span: its tokens, and the multiple of tokens from its start at which the kernel can be cut."""

    max_tokens: int = 8_192
    cut_tokens: int = 64


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """One pass over tokens [start, end) that exports the states at `targets`, all strictly inside.

    `spare` are those of the targets that stock vLLM would not have kept: the first to go when memory is short. With
    `keeps_end` the state at the end, which every pass leaves behind, is kept too, as a spare one.
    """

    request_id: str
    start: int
    end: int
    targets: tuple[int, ...]
    spare: tuple[int, ...] = ()
    keeps_end: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the pass."""
        return self.end - self.start

    @property
    def needed(self) -> int:
        """How many of the targets stock vLLM would have kept as well."""
        return len(self.targets) - len(self.spare)

    def with_spare(self, count: int) -> "SpanPlan":
        """Return the plan with its last `count` spare targets only."""
        spare = self.spare[len(self.spare) - count :]
        dropped = set(self.spare) - set(spare)
        return replace(self, targets=tuple(p for p in self.targets if p not in dropped), spare=spare)

    def columns(self, block_tokens: int) -> "Columns":
        """Return the block table columns that the pass reads and writes; column c is the state at (c+1) blocks."""
        return Columns(
            source=self.start // block_tokens - 1,
            targets=tuple(position // block_tokens - 1 for position in self.targets),
            final=(self.end - 1) // block_tokens,
        )


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a request's block table for recurrent state; a source of -1 is the empty state."""

    source: int
    targets: tuple[int, ...]
    final: int


def plan_span(
    request_id: str,
    start: int,
    end: int,
    prompt_tokens: int,
    grids: Grids,
    limits: SpanLimits,
    stops: Collection[int] = (),
) -> SpanPlan | Refusal:
    """Plan the pass over [start, end) of a prompt, or say why it can't be one.

    `stops` are the positions at which stock vLLM would end a chunk to keep a state: those inside the span are always
    among the targets, so that no state is lost that stock would have kept. The rest come from the grids.
    """
    if start % grids.fine_tokens:
        return Refusal.UNALIGNED_START
    if end - start > limits.max_tokens:
        return Refusal.SPAN_TOO_LONG
    if end % grids.fine_tokens and end != prompt_tokens:
        return Refusal.UNALIGNED_END
    needed = {stop for stop in stops if start < stop < end}
    retained = grids.retained(prompt_tokens)
    wished = [position for position in retained if start < position < end]
    keeps_end = end in retained and end not in stops
    if not needed and not wished and not keeps_end:
        return Refusal.NOTHING_TO_EXPORT
    if len(needed) > MAX_TARGETS:
        return Refusal.TOO_MANY_STOPS
    optional = [position for position in reversed(wished) if position not in needed]
    spare = tuple(sorted(optional[: MAX_TARGETS - len(needed)]))
    targets = tuple(sorted([*needed, *spare]))
    if any((target - start) % limits.cut_tokens for target in targets):
        return Refusal.UNALIGNED_CUT
    return SpanPlan(request_id, start, end, targets, spare, keeps_end)
