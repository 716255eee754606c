"""Drives vLLM's real scheduler step by step, without an engine: only the model's output is made up.

The token at position p of a sequence is `token_at(p)`, so a duplicated, lost or misplaced token shows.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from paceline.engine_ext.offline import Shape, build_scheduler
from paceline.engine_ext.scheduler import PacedScheduler
from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings

BLOCK = 16
BUDGET = 64
"""Tokens a step may compute: small, so that prompts of a few hundred tokens have several chunks."""


def token_at(position: int) -> int:
    return 100 + position % 300


def fixed(interval: int) -> PacingSettings:
    return PacingSettings(mode=PacingMode.FIXED, interval=interval)


@dataclass(frozen=True)
class Options(Shape):
    """What a test may vary of the engine, small by default: prompts of a few hundred tokens have several chunks."""

    budget: int = BUDGET
    max_seqs: int = 16
    blocks: int = 10_000


@dataclass
class Step:
    """One step as the scheduler decided it, with what was known before the decision."""

    tokens: dict[str, int]
    prefills: dict[str, int]
    decoders: set[str]
    preempted: list[str]
    exempt: set[str]
    held: set[str]
    stock_victims: list[str]
    could_work: bool

    @property
    def is_mixed(self) -> bool:
        return bool(self.decoders and self.prefills)


@dataclass
class Driver:
    """An engine's loop around a scheduler: schedules, makes up the model's output, hands it back in order.

    `seconds` is a virtual clock: a step takes 0.1 s, 10 ms a token, and `pair_seconds` for each pair of query and key
    of its prefills.
    """

    options: Options = field(default_factory=Options)
    pacing: PacingSettings = field(default_factory=PacingSettings)
    stock: bool = False
    wrong_drafts_from: int = 1
    drafts_every: int = 1
    pair_seconds: float = 0.0
    seconds: float = 0.0
    ended_at: float = 0.0
    steps: list[Step] = field(default_factory=list)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    revision: int = 0

    def __post_init__(self) -> None:
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256) if self.options.prefix_caching else None
        stock = AsyncScheduler if self.options.asynchronous else Scheduler
        self.scheduler = build_scheduler(stock if self.stock else PacedScheduler, self.options)
        self.in_flight: deque[tuple[Any, ModelRunnerOutput, float, float]] = deque()
        if not self.stock:
            self.scheduler.clock = lambda: self.seconds
            self.set_pacing(self.pacing)

    def set_pacing(self, pacing: PacingSettings) -> None:
        self.revision += 1
        self.scheduler.apply_settings(LiveSettings(revision=self.revision, pacing=pacing))

    def add(
        self,
        name: str,
        prompt: int,
        max_tokens: int = 1_000,
        *,
        priority: int = 0,
        salt: int | None = None,
        grammar: bool = False,
        images: Sequence[Any] = (),
    ) -> None:
        """Send a request; prompts differ from each other unless they are given the same `salt`.

        `images` are vLLM's multimodal features; their places in the prompt count, not their content.
        """
        offset = salt if salt is not None else 1 + len(self.requests)
        structure = StructuredOutputsParams(regex="x*") if grammar else None
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0, structured_outputs=structure)
        params.update_from_generation_config({}, eos_token_id=2)
        request = Request(
            request_id=name,
            prompt_token_ids=[(offset * 31 + position) % 90 for position in range(prompt)],
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(len(self.requests)),
            priority=priority,
            block_hasher=self.hasher,
            mm_features=list(images),
        )
        self.requests[name] = request
        self.outputs[name] = []
        self.scheduler.add_request(request)

    def compile_grammar(self, name: str) -> None:
        """End the compilation of a structured request's grammar; good for steps that sample nothing."""
        self.requests[name].structured_output_request.grammar = object()

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.finished.add(name)

    @property
    def unfinished(self) -> set[str]:
        return set(self.requests) - self.finished

    def step(self, times: int = 1) -> Step:
        for _ in range(times):
            self._one_step()
        return self.steps[-1]

    def run_until_done(self, limit: int) -> None:
        while self.unfinished:
            assert len(self.steps) < limit, f"unfinished after {limit} steps: {self.unfinished}"
            self._one_step()
        while self.in_flight:
            self._process()
        self._one_step()  # flushes the ids of the finished requests, as an engine does

    def _one_step(self) -> None:
        scheduler = self.scheduler
        before = list(scheduler.running)
        decoders = {r.request_id for r in before if self._decodes(r)}
        could_work = self._could_work(before)
        chunked = {r.request_id for r in before if r.is_prefill_chunk}
        preemptions = {name: r.num_preemptions for name, r in self.requests.items()}
        victims = self._stock_victims(before)
        output = scheduler.schedule()
        tokens = dict(output.num_scheduled_tokens)
        preempted = [name for name in victims if self.requests[name].num_preemptions > preemptions[name]]
        new = {r.req_id for r in output.scheduled_new_reqs} | set(output.scheduled_cached_reqs.resumed_req_ids)
        prefills = {name: count for name, count in tokens.items() if name in new | chunked}
        exempt = {name for name in prefills if preemptions[name] > 0}
        # A prefill that got nothing although the budget had something left was held.
        spare = sum(tokens.values()) < self.options.budget
        held = chunked - tokens.keys() - set(preempted) if spare and decoders else set()
        self.steps.append(Step(tokens, prefills, decoders, preempted, exempt, held, victims, could_work))
        seconds = self._step_seconds(output, prefills)
        self.in_flight.append((output, self._model_output(output, new), self.seconds, seconds))
        if len(self.in_flight) >= self.options.steps_in_flight:
            self._process()

    def _decodes(self, request: Request) -> bool:
        name, seen = request.request_id, len(self.outputs[request.request_id])
        coming = sum(bool(runner.sampled_token_ids[runner.req_id_to_index[name]])
                     for _, runner, _, _ in self.in_flight if name in runner.req_id_to_index)  # fmt: skip
        caught_up = request.num_computed_tokens >= len(request.all_token_ids) + coming - 1
        return seen > 0 and caught_up and seen + coming < request.max_tokens

    def _stock_victims(self, running: list[Request]) -> list[str]:
        """Return the running requests in the order in which vLLM would preempt them."""
        if self.options.policy == "priority":
            running = sorted(running, key=lambda request: (request.priority, request.arrival_time))
        return [request.request_id for request in reversed(running)]

    def _could_work(self, running: list[Request]) -> bool:
        free = self.scheduler.max_num_running_reqs > len(running) and bool(self.scheduler.waiting)
        return free or any(r.num_computed_tokens < r.num_tokens for r in running)

    def _model_output(self, output: Any, new: set[str]) -> ModelRunnerOutput:
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.requests[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            # vLLM itself pads a new request of one token with placeholders; the worker knows those.
            assert name in new or all(token >= 0 for token in drafts), "a placeholder reached the model"
            sampled.append([] if request.is_prefill_chunk else self._sample(request, drafts))
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _sample(self, request: Request, drafts: list[int]) -> list[int]:
        first = request.num_computed_tokens - len(drafts)
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == token_at(first + accepted):
            accepted += 1
        return [token_at(first + index) for index in range(accepted + 1)]

    def _step_seconds(self, output: Any, prefills: dict[str, int]) -> float:
        pairs = sum(count * (self.requests[name].num_computed_tokens - count / 2) for name, count in prefills.items())
        return 0.1 + 0.01 * output.total_num_scheduled_tokens + self.pair_seconds * pairs

    def _process(self) -> None:
        output, runner, scheduled_at, seconds = self.in_flight.popleft()
        # A step begins when it is scheduled, or when the step before it ends.
        self.ended_at = max(scheduled_at, self.ended_at) + seconds
        self.seconds = self.ended_at
        for answers in self.scheduler.update_from_output(output, runner).values():
            for answer in answers.outputs:
                self.outputs[answer.request_id].extend(answer.new_token_ids)
                if answer.finish_reason is not None:
                    self.finished.add(answer.request_id)
        if self.options.drafts and len(self.steps) % self.drafts_every == 0:
            self._draft(runner)

    def _draft(self, runner: ModelRunnerOutput) -> None:
        names = [name for name, sampled in zip(runner.req_ids, runner.sampled_token_ids, strict=True) if sampled]
        drafts = []
        for name in names:
            start = len(self.requests[name].all_token_ids)
            right = [token_at(start + index) for index in range(self.wrong_drafts_from)]
            drafts.append((right + [99] * self.options.drafts)[: self.options.drafts])
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    # -- what tests ask ------------------------------------------------------------------------------------------

    def chunk_steps(self, name: str) -> list[int]:
        """Return the numbers, from 1, of the steps that computed a part of the request's prompt."""
        return [number for number, step in enumerate(self.steps, 1) if name in step.prefills]

    def chunks(self, name: str) -> list[int]:
        return [step.prefills[name] for step in self.steps if name in step.prefills]

    def preemptions_while_paced(self, name: str) -> int:
        """Return how often a request was preempted after it had been held since its last admission."""
        count, was_held = 0, False
        for step in self.steps:
            was_held |= name in step.held
            if name in step.preempted:
                count, was_held = count + was_held, False
        return count

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def assert_whole(self, name: str) -> None:
        """Assert that a finished request's output has every token once and in its place."""
        request = self.requests[name]
        start = request.num_prompt_tokens
        assert self.outputs[name] == [token_at(start + index) for index in range(request.max_tokens)]
