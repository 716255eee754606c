"""Pacing by a promise: the gap between mixed steps follows from the residents' slack and the prefills' deadline."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from paceline.engine_ext.pacing.deadline import Backlog, StepCosts, must_escape
from paceline.engine_ext.pacing.promise import CREDIT_RELEASES, PRUNE_MARGIN, Promise
from paceline.engine_ext.pacing.step_time import StepLoad, StepTimeModel, chunk_load, decode_load
from paceline.engine_ext.settings import MAX_INTERVAL_STEPS, PacingSettings, SloPrecedence, SloSettings

RELEASE_STEPS: Final = 1
"""The gap that lets prefills into the very next step."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What the next step could be: who would be delayed by a chunk, and which prefills wait for one.

    `decoders` are the tokens that each decoder gets by the end of the next step, from the steps in flight and from
    that one. `in_flight` are the loads of steps started and not finished, the oldest started at `busy_since`; with
    asynchronous scheduling there is one. `context_tokens` is how far the prefill in turn has come.
    """

    now: float
    decoders: Mapping[str, int]
    backlog: Sequence[Backlog]
    chunk_tokens: int
    context_tokens: int
    in_flight: Sequence[StepLoad] = ()
    busy_since: float = 0.0


@dataclass(slots=True)
class SloPolicy:
    """Decides by the promise. `slack_seconds` is what the last decision found; None before the model is ready.

    `hurried` tells that at the last decision some prefill's deadline was near, `escaping` that it released a chunk for
    that, against the residents' promise.
    `ending` is when the prompts whose last chunk is in flight arrived, by request.
    """

    settings: SloSettings
    fallback_steps: int
    model: StepTimeModel
    promise: Promise = field(init=False)
    slack_seconds: float | None = None
    hurried: bool = False
    escaping: bool = False
    prefills_kept: int = 0
    prefills_broken: int = 0
    ending: dict[str, float] = field(default_factory=dict)
    credit_cap: float = field(init=False)

    def __post_init__(self) -> None:
        self.promise = Promise(self.settings.time_per_output_token_milliseconds / 1000)
        self.credit_cap = CREDIT_RELEASES * self.promise.seconds

    @classmethod
    def build(cls, pacing: PacingSettings, model: StepTimeModel) -> "SloPolicy":
        """Make the policy of settings whose mode is SLO; `interval` paces until the model is ready."""
        assert pacing.slo is not None  # the settings' own validator requires it
        return cls(pacing.slo, max(RELEASE_STEPS, pacing.interval), model)

    def follow(self, pacing: PacingSettings) -> None:
        """Go on under changed settings of mode SLO; what was kept and broken so far stays counted."""
        assert pacing.slo is not None
        if pacing.slo.time_per_output_token_milliseconds != self.settings.time_per_output_token_milliseconds:
            self.promise.restart(pacing.slo.time_per_output_token_milliseconds / 1000)
        self.settings, self.fallback_steps = pacing.slo, max(RELEASE_STEPS, pacing.interval)

    def gap_steps(self, prospect: Prospect) -> int:
        """Return how many steps mixed steps must lie apart now: 1 releases a chunk, the largest interval holds it."""
        if not self.model.ready:
            self.slack_seconds = None
            self.escaping = self.hurried = self._hurries(prospect, None)
            return RELEASE_STEPS if self.escaping else self.fallback_steps
        decoders = len(prospect.decoders)
        mixed = self.model.predict(chunk_load(decoders, prospect.chunk_tokens, prospect.context_tokens))
        decode = self.model.predict(decode_load(decoders))
        self.credit_cap = CREDIT_RELEASES * max(mixed - decode, self.promise.seconds)
        done_at = self._free_at(prospect) + mixed
        self.slack_seconds = self.promise.smallest_slack(prospect.decoders, done_at)
        costs = StepCosts(decode, *self.model.prefill_costs())
        self.hurried = self._hurries(prospect, costs)
        self.escaping = self.slack_seconds < 0 and self.hurried
        return RELEASE_STEPS if self.slack_seconds >= 0 or self.escaping else MAX_INTERVAL_STEPS

    def _free_at(self, prospect: Prospect) -> float:
        """Return when the engine can begin another step."""
        if not prospect.in_flight:
            return prospect.now
        return max(prospect.now, prospect.busy_since + sum(self.model.predict(load) for load in prospect.in_flight))

    def _hurries(self, prospect: Prospect, costs: StepCosts | None) -> bool:
        if self.settings.precedence is not SloPrecedence.PREFILL_DELAY:
            return False
        max_delay = self.settings.max_prefill_delay_seconds
        return must_escape(prospect.backlog, prospect.chunk_tokens, costs, max_delay)

    def on_last_chunk(self, request_id: str, arrived: float) -> None:
        """Note that the last chunk of a prompt that arrived at `arrived` is on its way."""
        self.ending[request_id] = arrived

    def on_output(self, request_id: str, tokens: int, now: float, *, finished: bool) -> None:
        """Account for what a step gave a request; the first output after its last chunk ends its prefill."""
        if (arrived := self.ending.pop(request_id, None)) is not None:
            self.on_prefill_done(now - arrived)
        if tokens:
            self.promise.on_tokens(request_id, tokens, now, self.credit_cap)
        if finished:
            self.promise.on_finished(request_id)

    def on_aborted(self, request_id: str, waited: float, *, answered: bool) -> None:
        """Judge a request that ended from outside: by the tokens it got, or by its wait if that was too long already.

        vLLM ends requests so whose client went away, and those that came to a stop string.
        """
        self.ending.pop(request_id, None)
        self.promise.on_finished(request_id)
        if not answered and waited > self.settings.max_prefill_delay_seconds:
            self.prefills_broken += 1

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Drop what is kept of requests that were aborted, once it is much."""
        self.promise.forget_all_but(alive)
        if len(self.ending) > PRUNE_MARGIN:
            self.ending = {key: arrived for key, arrived in self.ending.items() if key in alive}

    def on_prefill_done(self, waited: float) -> None:
        """Judge a prompt whose prefill ended `waited` seconds after its arrival."""
        if waited <= self.settings.max_prefill_delay_seconds:
            self.prefills_kept += 1
        else:
            self.prefills_broken += 1

    def report(self) -> dict[str, Any]:
        """Return the slack at the last decision and how many promises were kept, as the admin route answers it.

        The slack is None where none of the residents had an account yet.
        """
        slack = self.slack_seconds
        return {
            "slackSeconds": slack if slack is None or math.isfinite(slack) else None,
            "residentsKept": self.promise.kept,
            "residentsBroken": self.promise.broken,
            "prefillsKept": self.prefills_kept,
            "prefillsBroken": self.prefills_broken,
        }
