"""An engine's loop around vLLM's real scheduler, in virtual time: only the model's output and its duration are made up.

Needs vLLM. The durations come from a hardware model; which step computes what is the scheduler's own decision.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from paceline.bench.simulator.hardware import Hardware
from paceline.engine_ext.offline import Shape, build_scheduler
from paceline.engine_ext.scheduler import PacedScheduler
from paceline.engine_ext.settings import LiveSettings, PacingSettings

TOKEN: Final = 7
END_TOKEN: Final = 2
BLOCK_TOKENS: Final = 16


class StalledError(Exception):
    """The scheduler schedules nothing although requests are unfinished; the message says what could be wrong."""


@dataclass(slots=True)
class SimulatedStep:
    """A step: when it ended, how long it took, and what it computed."""

    ended: float
    seconds: float
    decoders: int
    prefill_tokens: int


@dataclass(slots=True)
class SimulatedRequest:
    """A request's course: seconds at which it arrived, its prompt began to be computed, and its tokens came."""

    prompt_tokens: int
    max_tokens: int
    arrived: float
    admitted: float | None = None
    token_seconds: list[float] = field(default_factory=list)
    finished: bool = False
    owed: float = 0.0

    def accept(self, drafts: int, per_step: float) -> int:
        """Return how many of the drafts are accepted, so that a step yields `per_step` tokens on average."""
        self.owed += per_step - 1
        accepted = min(drafts, int(self.owed))
        self.owed -= accepted
        return accepted


@dataclass(slots=True)
class _InFlight:
    output: Any
    runner: ModelRunnerOutput
    scheduled_at: float
    seconds: float
    decoders: int
    prefill_tokens: int


class Simulation:
    """One simulated engine; `pacing` None runs vLLM's own scheduler. `now` is its virtual clock, in seconds."""

    def __init__(self, hardware: Hardware, pacing: PacingSettings | None) -> None:
        self.hardware = hardware
        self.now = 0.0
        self.steps: list[SimulatedStep] = []
        self.requests: dict[str, SimulatedRequest] = {}
        shape = Shape(
            budget=hardware.max_num_batched_tokens,
            max_seqs=hardware.max_num_seqs,
            blocks=hardware.kv_cache_tokens // BLOCK_TOKENS,
            block_size=BLOCK_TOKENS,
            asynchronous=hardware.asynchronous,
            drafts=hardware.draft_tokens,
        )
        stock = AsyncScheduler if hardware.asynchronous else Scheduler
        self._scheduler = build_scheduler(PacedScheduler if pacing is not None else stock, shape)
        self._depth = shape.steps_in_flight
        self._in_flight: deque[_InFlight] = deque()
        self._live: dict[str, Request] = {}
        self._ended_at = 0.0
        self.preemptions = 0
        if pacing is not None:
            self._scheduler.clock = lambda: self.now
            self._scheduler.apply_settings(LiveSettings(revision=1, pacing=pacing))

    def add(self, name: str, prompt_tokens: int, max_tokens: int, arrived: float | None = None) -> SimulatedRequest:
        """Hand a request to the scheduler now; it arrived at `arrived`, which may lie before."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        params.update_from_generation_config({}, eos_token_id=END_TOKEN)
        request = Request(name, [1] * prompt_tokens, params, None)
        course = SimulatedRequest(prompt_tokens, max_tokens, self.now if arrived is None else arrived)
        self.requests[name] = course
        self._live[name] = request
        self._scheduler.add_request(request)
        return course

    def idle_until(self, seconds: float) -> None:
        """Let time pass on an engine that has nothing to do."""
        self.now = self._ended_at = max(self.now, seconds)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Make steps until `done`. Raises StalledError when nothing can be scheduled any more."""
        while not done():
            self.step()

    def step(self) -> None:
        """Schedule one step, and process the oldest in flight once the engine has as many as it can have."""
        output = self._scheduler.schedule()
        if not output.total_num_scheduled_tokens and not self._in_flight:
            unfinished = [name for name, course in self.requests.items() if not course.finished]
            raise StalledError(f"nothing can be scheduled for {unfinished[:5]}: is the KV cache too small?")
        self.preemptions += len(output.preempted_req_ids or ())
        self._in_flight.append(self._started(output))
        if len(self._in_flight) >= self._depth:
            self._process(self._in_flight.popleft())

    def _started(self, output: Any) -> _InFlight:
        decoders, prefill_tokens, pairs = 0, 0, 0.0
        names = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name, count in output.num_scheduled_tokens.items():
            request, course = self._live[name], self.requests[name]
            start = request.num_computed_tokens - count
            if start < request.num_prompt_tokens:
                prefill_tokens += count
                pairs += count * (start + count / 2)
                course.admitted = self.now if course.admitted is None else course.admitted
            else:
                decoders += 1
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            accepted = course.accept(drafts, self.hardware.tokens_per_step) if drafts else 0
            sampled.append([] if request.is_prefill_chunk else [TOKEN] * (1 + accepted))
        runner = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        seconds = self.hardware.step_time.seconds(decoders, prefill_tokens, pairs) if names else 0.0
        return _InFlight(output, runner, self.now, seconds, decoders, prefill_tokens)

    def _process(self, step: _InFlight) -> None:
        # A step begins when it is scheduled, or when the step before it ends.
        self._ended_at = self.now = max(step.scheduled_at, self._ended_at) + step.seconds
        for answers in self._scheduler.update_from_output(step.output, step.runner).values():
            for answer in answers.outputs:
                course = self.requests[answer.request_id]
                course.token_seconds.extend([self.now] * len(answer.new_token_ids))
                if answer.finish_reason is not None:
                    course.finished = True
                    del self._live[answer.request_id]
        if step.seconds:
            self.steps.append(SimulatedStep(self.now, step.seconds, step.decoders, step.prefill_tokens))
        if self.hardware.draft_tokens:
            names = [name for name in step.runner.req_ids if name in self._live and self.requests[name].token_seconds]
            self._scheduler.update_draft_token_ids(
                DraftTokenIds(names, [[TOKEN] * self.hardware.draft_tokens for _ in names])
            )
