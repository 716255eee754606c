"""Pacing as a mixin of vLLM's schedulers: decides before each step, holds, and writes down what was scheduled."""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.interface import PauseState

from paceline.engine_ext import compat
from paceline.engine_ext.environment import settings_path
from paceline.engine_ext.live import Applied, decide, read_settings
from paceline.engine_ext.pacing import cached, prefills, view
from paceline.engine_ext.pacing.cadence import Cadence
from paceline.engine_ext.pacing.hold import Hold, held
from paceline.engine_ext.pacing.reasons import own_cadence, unpaceable
from paceline.engine_ext.pacing.slo import Prospect, SloPolicy
from paceline.engine_ext.pacing.step_time import StepTimeModel
from paceline.engine_ext.pacing.stock import StockScheduler
from paceline.engine_ext.pacing.turns import Turn, admissible, end_turn, fitting, next_in_turn, take_turn
from paceline.engine_ext.settings import LiveSettings, PacingMode, Verdict
from paceline.engine_ext.telemetry.steps import Noted, StepKind, StepLog, decode_note

logger = init_logger("vllm.paceline")


class PacingMixin(StockScheduler):
    """Paces prefills by holding them for single steps; put it before vLLM's `AsyncScheduler` among the bases.

    `live` holds the settings that the engine runs; it is replaced between two steps and may be read by other mixins.
    `clock` gives seconds from any origin, monotonic; tests and the simulator replace it before the first step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock: Callable[[], float] = time.monotonic
        self.live: LiveSettings = read_settings(settings_path())
        self.incompatible = compat.problems("pacing")
        self.unpaced_reasons = [*self.incompatible, *unpaceable(self.vllm_config), *own_cadence(self)]
        self.engine_rank: int = self.vllm_config.parallel_config.data_parallel_index
        self.cadence = Cadence()
        self.step_log = StepLog()
        self.step_times = StepTimeModel()
        self.slo: SloPolicy | None = None
        self.turn: Turn | None = None
        self.turn_missed = False
        self.looks_left = cached.LOOKS_PER_STEP
        self._set_up_pacing()
        if self.num_spec_tokens and not self.incompatible:
            self._reserve_prefill_lookahead = self._keep_off_verify_size
        for reason in self.unpaced_reasons:
            logger.warning("paceline: prefills are not paced: %s", reason)

    # -- settings ------------------------------------------------------------------------------------------------

    def apply_settings(self, incoming: LiveSettings) -> Applied:
        """Take over newer settings; called between two steps, so no step sees two of them."""
        applied = decide(self.live, incoming)
        if applied.verdict is Verdict.APPLY:
            self.live = applied.running
            self.step_log.settings_changes += 1
            self._set_up_pacing()
            logger.info("paceline: settings of epoch %d, revision %d run from here on", *self.live.fence)
        return applied

    def _set_up_pacing(self) -> None:
        pacing = self.live.pacing
        if pacing.mode is not PacingMode.SLO:
            self.slo = None
        elif self.slo is None:
            self.slo = SloPolicy.build(pacing, self.step_times)
        else:
            self.slo.follow(pacing)
        self.paced: bool = not self.unpaced_reasons and (pacing.effective_interval > 1 or self.slo is not None)

    def pacing_report(self) -> dict[str, Any]:
        """Return what paces the engine now: the interval in steps, or the slack and how the promise was kept."""
        pacing = self.live.pacing
        if self.slo is None:
            return {"mode": pacing.mode.value, "intervalSteps": pacing.effective_interval}
        return {"mode": pacing.mode.value, **self.slo.report()}

    # -- one step ------------------------------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        """Note when a prompt arrived at this engine: its prefill's deadline counts from here."""
        if request.request_id not in self.requests:
            self._arrives(request)
        super().add_request(request)

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        """Go on with a session's next input, whose prefill's deadline counts from here."""
        super()._update_request_as_session(session, update)
        self._arrives(session)

    def _arrives(self, request: Any) -> None:
        request.paceline_arrived_at = request.paceline_waits_since = self.clock()
        request.paceline_turns = 0

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> Any:
        """End requests from outside, and judge what they were promised."""
        if self.slo is not None:
            ids = self.requests if request_ids is None else request_ids
            request_ids = [ids] if isinstance(ids, str) else list(ids)
            for request in filter(None, map(self.requests.get, request_ids)):
                waited = self.clock() - request.paceline_arrived_at
                self.slo.on_aborted(request.request_id, waited, answered=request.num_output_tokens > 0)
        return super().finish_requests(request_ids, finished_status)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Schedule a step, with prefills held where the cadence or the promise asks for it."""
        started_at = self.clock()
        if not self._inflight_prefills and len(self.requests) == len(self.running):
            output = super().schedule(throttle_prefills)
            self.step_log.in_flight.append((output, started_at, self.live.revision, None))
            return output
        prefilling = [request for request in self.running if request.is_prefill_chunk]
        decoding = view.any_decoder(self.running, self.max_model_len)
        self.turn, self.looks_left = None, cached.LOOKS_PER_STEP
        hold = self._plan_hold(prefilling) if decoding and self.paced else None
        with held(self, hold) if hold else nullcontext():
            output = super().schedule(throttle_prefills)
        deferred = hold.deferred if hold else 0
        scheduled = prefills.scheduled(output, prefilling, self.requests)
        self._end_turn(scheduled, started_at)
        note = (
            self._note(output, scheduled, decoding=decoding, deferred=deferred)
            if scheduled
            else decode_note(output, deferred)
        )
        self.step_log.in_flight.append((output, started_at, self.live.revision, note))
        return output

    def _plan_hold(self, prefilling: list[Any]) -> Hold | None:
        """Return what to hold in this step; None when prefills may run, or when there are none."""
        waiting = self._admittable()
        if not prefilling and not waiting:
            return None
        kept = [request for request in prefilling if not view.is_exempt(request)]
        step, gap = self.step_log.next_busy(), self.live.pacing.effective_interval
        ready = admissible(self, waiting) if self.slo is not None or self.cadence.allows(step, gap) else []
        if self.slo is not None:
            gap = self._promised_gap(self.slo, prefilling, ready)
        if self.cadence.allows(step, gap):
            return self._plan_turn(kept, ready)
        if not view.any_schedulable_decoder(self.running, self.max_model_len, self.current_step + 1):
            return None  # all decoders are in flight: holding would leave the step empty
        return Hold(kept, waiting, admit_first=waiting > 0 and self._first_waiting_is_exempt())

    def _plan_turn(self, partial: list[Any], waiting: list[Any]) -> Hold | None:
        """Return what to hold in a mixed step, so that prefills take turns; None where nobody has to wait.

        Near a deadline the oldest goes first, as vLLM has it, and so it does after a turn that nobody could use.
        """
        if self.turn_missed or (self.slo is not None and self.slo.hurried):
            return None
        if not view.any_schedulable_decoder(self.running, self.max_model_len, self.current_step + 1):
            return None
        self.turn = take_turn(self, partial, waiting)
        return Hold(partial, 0, allowed_tokens=self.turn.allowed_tokens) if self.turn else None

    def _end_turn(self, scheduled: list[Any], now: float) -> None:
        """Let those that had their turn wait anew; one that could not use its own has had it too."""
        if self.turn is None:
            self.turn_missed = False
            end_turn(scheduled, now)
            return
        self.turn_missed = all(request.request_id != self.turn.in_turn for request in scheduled)
        end_turn([self.requests[self.turn.in_turn]], now)

    def _promised_gap(self, slo: SloPolicy, prefilling: list[Any], ready: list[Any]) -> int:
        """Return the policy's gap; a prompt that does not fit the cache yet gets no chunk, but its wait counts."""
        now = self.clock()
        turn = [*prefilling, *fitting(self, prefilling, ready)]
        decoders = {
            request.request_id: self.step_log.in_flight_steps(request.request_id)
            + view.can_decode_now(request, self.current_step + 1)
            for request in self.running
            if view.is_decoder(request, self.max_model_len)
        }
        backlog = [prefills.backlog(self, request, now) for request in (*prefilling, *ready)]
        return slo.gap_steps(
            Prospect(
                now=now,
                decoders=decoders,
                backlog=backlog,
                chunk_tokens=prefills.chunk_tokens(
                    backlog[: len(turn)],
                    self.max_num_scheduled_tokens - len(decoders),
                    self.scheduler_config.long_prefill_token_threshold,
                ),
                context_tokens=cached.context(self, next_in_turn(self, turn)) if turn else 0,
                in_flight=self.step_log.loads_in_flight(),
                busy_since=self.step_log.busy_since(now),
            )
        )

    def _admittable(self) -> int:
        """Return how many waiting requests the engine has free slots for."""
        if self._pause_state is not PauseState.UNPAUSED:
            return 0
        free = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        return max(0, min(free, len(self.admission_queue)))

    def _first_waiting_is_exempt(self) -> bool:
        if self.lora_config is not None or self.kv_holding_waiting:
            return False  # the scheduler could pass over the first one and let another in
        return prefills.is_ready_after_preemption(self.waiting.peek_request())

    # -- what was scheduled --------------------------------------------------------------------------------------

    def _note(self, output: Any, scheduled: list[Any], *, decoding: bool, deferred: int) -> Noted:
        """Note a step with prefills, and set the cadence by it if it was a mixed one that pacing could have held."""
        if decoding and not all(view.is_exempt(request) for request in scheduled):
            self.cadence.last_mixed = self.step_log.next_busy()
        if self.slo is not None:
            for request in scheduled:
                if not request.is_prefill_chunk and not request.num_output_tokens:
                    self.slo.on_last_chunk(request.request_id, request.paceline_arrived_at)
        return Noted(StepKind.MIXED if decoding else StepKind.PREFILL, deferred, prefills.load(output, scheduled))

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process a step's output, and learn from it."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        record = self.step_log.finish(scheduler_output, self.clock())
        if record is not None and record.kind is not StepKind.EMPTY:
            self.step_times.observe(record.load, record.seconds)
        if self.slo is not None:
            self._account_tokens(self.slo, outputs)
        return outputs

    def _account_tokens(self, slo: SloPolicy, outputs: Any) -> None:
        now = self.step_log.finished_at
        for client_outputs in outputs.values():
            for output in client_outputs.outputs:
                finished = output.finish_reason is not None
                slo.on_output(output.request_id, len(output.new_token_ids), now, finished=finished)
        slo.forget_all_but(self.requests)

    def _keep_off_verify_size(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Never let a prefill chunk have exactly 1+K tokens while K draft tokens are on.

        Such a chunk looks like a batch that verifies drafts, and takes the wrong graph. One token less does not, or as
        many less as a draft model that looks ahead in the prompt wants to find left.
        """
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        to_compute = request.num_tokens - num_computed_tokens
        is_prefill = to_compute >= tokens  # drafts and padding go past the tokens that the request has
        if not is_prefill or tokens != 1 + self.num_spec_tokens:
            return tokens
        return tokens - max(1, self.num_prefill_lookahead)
