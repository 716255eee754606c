"""The source's state before its change, for comparison only: off-grid final chunks climb the retained positions.

`coalescing_ttft.py` starts its engine with this scheduler in place of Paceline's own. It behaves like that one until
`coalescing.maxSpanTokens` is LADDER_SPAN_TOKENS: that value, which nobody else has a use for, is the arm "ladder".
"""

from typing import Any, Final, Self

from vllm.v1.core.sched.scheduler import Scheduler

from paceline.engine_ext.coalescing.plan import Refusal, SpanPlan
from paceline.engine_ext.scheduler import PacedScheduler
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk

LADDER_SPAN_TOKENS: Final = 131_071
LADDER: Final = CoalescingSettings(final_chunk=FinalChunk.ENABLED, max_span_tokens=LADDER_SPAN_TOKENS)


class LadderScheduler(PacedScheduler):
    """Paceline's scheduler with the ladder as one more arm."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Self:
        """Choose the class by the engine's configuration, as the base class does."""
        is_async = vllm_config.scheduler_config.async_scheduling
        return object.__new__(cls if is_async else SynchronousLadderScheduler)

    def _plan(self, request: Any, start: int, end: int, external_tokens: int) -> SpanPlan | Refusal:
        plan = super()._plan(request, start, end, external_tokens)
        is_ladder = self.live.coalescing.max_span_tokens == LADDER_SPAN_TOKENS
        if not is_ladder or isinstance(plan, Refusal) or not plan.targets:
            return plan
        if plan.end % self.coalescing_grids.fine_tokens == 0:
            return plan  # the source coalesced spans that end on the grid before its change as well
        stop = plan.targets[0]
        return SpanPlan(plan.request_id, start, stop, (), (), keeps_end=stop in plan.spare)


class SynchronousLadderScheduler(LadderScheduler):
    """The same for an engine that waits for each step's output."""

    _update_after_schedule = Scheduler._update_after_schedule
    _update_request_with_output = Scheduler._update_request_with_output
