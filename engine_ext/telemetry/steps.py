"""Counters and records of engine steps, written by the scheduler's thread alone and read between its steps.

No lock: the admin routes read through a utility call, which vLLM runs in the scheduler's own thread.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple

from paceline.engine_ext.pacing.step_time import StepLoad, decode_load

RING_STEPS: Final = 16_384
"""How many of the newest steps are kept: more than a long prompt takes in chunks that are many steps apart."""
RING_REQUESTS: Final = 2**18
"""How many requests the kept steps may hold together, which bounds the memory of a crowded engine's ring."""
MAX_RECORDS: Final = 1000
"""How many records one answer carries at most: they are written between two engine steps."""


class StepKind(StrEnum):
    """What a step computed; `mixed` when a decoder existed and prefill tokens were scheduled."""

    DECODE = "decode"
    MIXED = "mixed"
    PREFILL = "prefill"
    EMPTY = "empty"


class Noted(NamedTuple):
    """What was known of a step when it was scheduled, beyond that it only decodes and holds nothing back."""

    kind: StepKind
    deferred: int
    load: StepLoad


Started = tuple[Any, float, int, Noted | None]
"""A step in flight: vLLM's SchedulerOutput, start in seconds, revision of the settings, and what was noted.

A plain tuple, and no note for steps that only decode: one is made in every call of schedule(), whose time counts.
"""


def decode_note(output: Any, deferred: int = 0) -> Noted:
    """Return the note of a step without prefills."""
    count = len(output.num_scheduled_tokens)
    return Noted(StepKind.DECODE if count else StepKind.EMPTY, deferred, decode_load(count))


class StepRecord(NamedTuple):
    """A finished step."""

    step: int
    revision: int
    kind: StepKind
    deferred: int
    seconds: float
    load: StepLoad
    scheduled: Mapping[str, int]

    def to_wire(self, engine: int) -> dict[str, Any]:
        """Return the record as the admin route answers it."""
        return {
            "engine": engine,
            "step": self.step,
            "revision": self.revision,
            "kind": self.kind.value,
            "decoders": self.load.decoders,
            "prefillTokens": self.load.prefill_tokens,
            "decodeTokens": sum(self.scheduled.values()) - self.load.prefill_tokens,
            "deferred": self.deferred,
            "durationSeconds": self.seconds,
            "scheduled": dict(self.scheduled),
        }


@dataclass(slots=True)
class KindTotals:
    """Sums over the steps of one kind."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class StepLog:
    """The steps in flight, the ring of finished ones, and the counters.

    `steps` numbers the steps in the order of their scheduling; `last_busy` is the newest finished one that computed
    something, and `busy` counts those.
    """

    in_flight: deque[Started] = field(default_factory=deque)
    records: deque[StepRecord] = field(default_factory=deque)
    recorded_requests: int = 0
    totals: dict[StepKind, KindTotals] = field(default_factory=lambda: {kind: KindTotals() for kind in StepKind})
    steps: int = 0
    busy: int = 0
    last_busy: int = 0
    deferred_prefill_steps: int = 0
    preemptions: int = 0
    settings_changes: int = 0
    finished_at: float = float("-inf")

    def finish(self, output: Any, now: float) -> StepRecord | None:
        """Note that the step with this output was processed at `now`; None for an output that was never started.

        The engine processes outputs in the order of their scheduling. A step's time runs from its start, or from the
        end of the step before it where the two overlapped.
        """
        while self.in_flight:
            started, started_at, revision, note = self.in_flight.popleft()
            self.steps += 1
            if started is output:
                break
        else:
            return None
        kind, deferred, load = note or decode_note(output)
        seconds = now - max(started_at, self.finished_at)
        self.finished_at = now
        if kind is not StepKind.EMPTY:
            self.busy += 1
            self.last_busy = self.steps
        totals = self.totals[kind]
        totals.steps += 1
        totals.tokens += output.total_num_scheduled_tokens
        totals.seconds += seconds
        self.deferred_prefill_steps += deferred > 0
        self.preemptions += len(output.preempted_req_ids or ())
        record = StepRecord(self.steps, revision, kind, deferred, seconds, load, output.num_scheduled_tokens)
        self._keep(record)
        return record

    def _keep(self, record: StepRecord) -> None:
        self.records.append(record)
        self.recorded_requests += len(record.scheduled)
        while len(self.records) > RING_STEPS or self.recorded_requests > RING_REQUESTS:
            self.recorded_requests -= len(self.records.popleft().scheduled)

    def next_busy(self) -> int:
        """Return the number, among the steps that compute something, that the next such step will have."""
        return self.busy + sum(output.total_num_scheduled_tokens > 0 for output, *_ in self.in_flight) + 1

    def loads_in_flight(self) -> list[StepLoad]:
        """Return the loads of the steps that were scheduled and have not finished, oldest first."""
        return [(note or decode_note(output)).load for output, _, _, note in self.in_flight]

    def in_flight_steps(self, request_id: str) -> int:
        """Return how many of the steps in flight compute tokens of a request."""
        return sum(request_id in output.num_scheduled_tokens for output, *_ in self.in_flight)

    def busy_since(self, now: float) -> float:
        """Return when the oldest step in flight began; `now` where there is none."""
        return max(self.in_flight[0][1], self.finished_at) if self.in_flight else now

    def counters(self) -> dict[str, Any]:
        """Return the counters as the admin route answers them."""
        return {
            **{
                kind.value: {"steps": sums.steps, "tokens": sums.tokens, "seconds": sums.seconds}
                for kind, sums in self.totals.items()
            },
            "deferredPrefillSteps": self.deferred_prefill_steps,
            "preemptions": self.preemptions,
            "settingsChanges": self.settings_changes,
        }

    def page(self, after: int | None, limit: int) -> list[StepRecord]:
        """Return the newest `limit` records; with `after`, the first that follow that step, to page on from."""
        count = min(limit, MAX_RECORDS)
        first = max(0, len(self.records) - count) if after is None else bisect_right(self.records, after, key=_number)
        return list(islice(self.records, first, first + count))


def _number(record: StepRecord) -> int:
    return record.step
