"""The scheduler's part of coalescing, as a mixin: chooses the span, and hands its plan to the caches and the worker."""

from typing import Any, Final

from vllm.logger import init_logger
from vllm.utils.math_utils import cdiv
from vllm.v1.core.sched.scheduler import Scheduler

from paceline.engine_ext import compat
from paceline.engine_ext.coalescing import admission
from paceline.engine_ext.coalescing.manager import CoalescingMambaManager
from paceline.engine_ext.coalescing.plan import Grids, Refusal, SpanLimits, SpanPlan, plan_span
from paceline.engine_ext.coalescing.report import CoalescingCounters
from paceline.engine_ext.coalescing.spare import SparePool
from paceline.engine_ext.settings import FinalChunk, LiveSettings

logger = init_logger("vllm.paceline")

PLAN_ATTRIBUTE: Final = "paceline_span_plan"
"""Where a step's SchedulerOutput carries its plan to the workers."""
COARSE_BLOCKS: Final = 4
"""Blocks of the coarse grid: the source's geometry, four ranks that share one sequence."""


class CoalescingMixin(Scheduler):
    """Runs a prompt's last span in one pass where it can; put it before vLLM's `AsyncScheduler` among the bases.

    With `coalescing.finalChunk` Disabled every call goes to vLLM's own scheduler, unchanged.
    """

    live: LiveSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coalescing_counters = CoalescingCounters()
        coordinator = self.kv_cache_manager.coordinator
        self._states = [m for m in coordinator.single_type_managers if isinstance(m, CoalescingMambaManager)]
        self._spare_pool = coordinator.block_pool if isinstance(coordinator.block_pool, SparePool) else None
        self.coalescing_obstacles: tuple[str, ...] = compat.problems("coalescing") or tuple(
            admission.engine_obstacles(self)
        )
        if not self.coalescing_obstacles and (not self._states or self._spare_pool is None):
            self.coalescing_obstacles = ("vLLM built its caches before the plugin was loaded",)
        for obstacle in self.coalescing_obstacles:
            logger.info("paceline: final chunks can't be coalesced on this engine: %s", obstacle)
        # On a CPU without a block size of the user's, vLLM sets cache_config.block_size anew once its caches are built.
        block = self._states[0].block_size if self._states else self.cache_config.block_size
        self.coalescing_grids = Grids(block, COARSE_BLOCKS * block, keeps_previous=True)
        self._span_plan: SpanPlan | None = None

    @property
    def _enabled(self) -> bool:
        return self.live.coalescing.final_chunk is FinalChunk.ENABLED

    def coalescing_report(self) -> dict[str, Any]:
        """Return whether final chunks are coalesced now, and what on this engine keeps them from it."""
        return {"active": self._enabled and not self.coalescing_obstacles, "obstacles": list(self.coalescing_obstacles)}

    def schedule(self, *throttle_prefills: bool) -> Any:
        """Schedule a step; its output carries the plan of the span that runs in it."""
        output = super().schedule(*throttle_prefills)
        if self._span_plan is not None:
            plan, self._span_plan = self._span_plan, None
            self._settle(plan, output)
        return output

    def _mamba_block_aligned_split(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """Return how many of the new tokens this step computes: a whole planned span, or what stock vLLM would."""
        stock = super()._mamba_block_aligned_split
        known = num_new_local_computed_tokens + num_external_computed_tokens
        if self._spare_pool is not None and self._spare_pool.spares and num_new_local_computed_tokens:
            self._keep_hit(self._spare_pool, request, num_new_local_computed_tokens)
        start = request.num_computed_tokens + known
        if not self._enabled or num_new_tokens <= 0 or start >= request.num_prompt_tokens:
            return stock(request, num_new_tokens, num_new_local_computed_tokens, num_external_computed_tokens)
        plan = self._plan(request, start, start + num_new_tokens, num_external_computed_tokens)
        if isinstance(plan, Refusal):
            self.coalescing_counters.refused[plan] += 1
            return stock(request, num_new_tokens, num_new_local_computed_tokens, num_external_computed_tokens)
        self._span_plan = plan
        for states in self._states:
            states.expect(plan)
        return plan.tokens

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Preempt a request, and take back what its span published if it was scheduled in this very step.

        vLLM publishes blocks when it schedules them; those of a span that another request preempts later in the same
        step are never computed, and yet could be hit.
        """
        unwritten = self._allocated_in_this_step(request) if self._enabled else ()
        super()._preempt_request(request, *args, **kwargs)
        if unwritten:
            self.kv_cache_manager.block_pool.evict_blocks(set(unwritten))

    # -- the decision --------------------------------------------------------------------------------------------

    def _plan(self, request: Any, start: int, end: int, external_tokens: int) -> SpanPlan | Refusal:
        if self.coalescing_obstacles:
            return Refusal.SPECULATIVE_DECODING if self.num_spec_tokens else Refusal.UNSUPPORTED_ENGINE
        settings = self.live.coalescing
        refusal = admission.request_refusal(request, external_tokens)
        refusal = refusal or admission.company_refusal(self, request, settings.admission)
        if refusal is not None:
            return refusal
        block = self.coalescing_grids.fine_tokens
        prompt = request.num_prompt_tokens
        if end < prompt:
            end = end // block * block
        if end <= start:
            return Refusal.UNALIGNED_END
        stops = ((prompt - 1) // block * block, request.shared_prefix_boundary // block * block)
        limits = SpanLimits(settings.max_span_tokens, admission.CUT_TOKENS)
        plan = plan_span(request.request_id, start, end, prompt, self.coalescing_grids, limits, stops)
        return self._fit(plan) if isinstance(plan, SpanPlan) and plan.targets else plan

    def _fit(self, plan: SpanPlan) -> SpanPlan | Refusal:
        """Return the plan with as many spare states as fit in memory that stock vLLM would leave unused.

        Counts as if the request held none of the prompt's blocks yet unless it runs already, which errs upwards.
        """
        pool = self._spare_pool
        assert pool is not None
        groups = len(self._states)
        passes_on = all(states.passes_on(plan) for states in self._states)
        blocks = groups * (plan.needed if passes_on else 2 + plan.needed) + self.kv_cache_manager.watermark_blocks
        for manager in self.kv_cache_manager.coordinator.single_type_managers:
            if not isinstance(manager, CoalescingMambaManager):
                held = len(manager.req_to_blocks.get(plan.request_id, ()))
                blocks += max(0, cdiv(plan.end, manager.block_size) - held)
        if blocks > pool.get_num_free_blocks():
            return Refusal.NO_FREE_BLOCKS
        # Nobody can take a spare state's block in this step, and the others may need their next ones.
        blocks += (1 + groups) * sum(other.request_id != plan.request_id for other in self.running)
        clean = pool.clean_blocks(blocks + groups * len(plan.spare)) - blocks
        if clean < 0 and self._starts_from_spare(pool, plan):
            return Refusal.NO_FREE_BLOCKS
        fitting = plan.with_spare(max(0, min(len(plan.spare), clean // groups)))
        return fitting if fitting.targets else Refusal.NO_FREE_BLOCKS

    def _starts_from_spare(self, pool: SparePool, plan: SpanPlan) -> bool:
        """Tell whether the span starts from a state that stock vLLM would not have kept, and not hold now."""
        source = plan.columns(self.coalescing_grids.fine_tokens).source
        tables = [states.req_to_blocks.get(plan.request_id, ()) for states in self._states]
        return any(0 <= source < len(blocks) and blocks[source].block_id in pool.spares for blocks in tables)

    def _keep_hit(self, pool: SparePool, request: Any, hit_tokens: int) -> None:
        """Make a spare state an ordinary one when stock vLLM would have had to make it for this request.

        That is so when the request shares no more than the hit: then stock computes, and keeps, that very state.
        """
        if request.shared_prefix_boundary > hit_tokens:
            return
        block_hash = request.block_hashes[hit_tokens // pool.hash_block_size - 1]
        hit = pool.get_cached_block(block_hash, [states.kv_cache_group_id for states in self._states])
        pool.keep(hit or ())

    def _allocated_in_this_step(self, request: Any) -> list[int]:
        """Return the blocks that hold nothing of a request yet: those of tokens from `num_computed_tokens` on."""
        return [
            block.block_id
            for manager in self.kv_cache_manager.coordinator.single_type_managers
            for block in manager.req_to_blocks.get(request.request_id, ())[
                request.num_computed_tokens // manager.block_size :
            ]
            if not block.is_null
        ]

    # -- after the step was scheduled ----------------------------------------------------------------------------

    def _settle(self, plan: SpanPlan, output: Any) -> None:
        """Pass a plan on to the workers, unless its span was not scheduled after all or preempted in its own step."""
        exports = [states.withdraw() for states in self._states]
        pool = self._spare_pool
        assert pool is not None
        if output.num_scheduled_tokens.get(plan.request_id) != plan.tokens:
            self.coalescing_counters.refused[Refusal.NO_FREE_BLOCKS] += 1
            return
        spare = (*plan.spare, plan.end) if plan.keeps_end else plan.spare
        pool.lend(blocks[position] for position in spare for blocks in exports)
        for states in self._states:
            states.let_go(plan.request_id, plan.spare)
        self.coalescing_counters.planned(plan)
        if plan.targets:
            setattr(output, PLAN_ATTRIBUTE, plan)
