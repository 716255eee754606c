"""vLLM's own scheduler, under the names that pacing reads, in each version of vLLM that it runs on.

vLLM 0.32 and 0.33 have these names themselves. 0.22.1 keeps the same things under others, or has no use for them.
"""

import inspect
from collections.abc import Sized
from concurrent.futures import Future
from typing import Any, Final

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from paceline.engine_ext import compat

UNKNOWN: Final = (None,)
"""Stands for a set that this engine does not keep; true, since it may hold something."""


class NewerScheduler(Scheduler):
    """vLLM 0.24 and later: `schedule()` takes `throttle_prefills`."""

    _inflight_prefills: Any = UNKNOWN

    @property
    def admission_queue(self) -> Sized:
        """The waiting requests in the order in which the scheduler looks at them."""
        return self.waiting

    def unblocked(self, request: Any) -> bool:
        """Tell whether a waiting request can be scheduled, once what it waits for is checked anew."""
        return bool(self._handle_blocked_waiting_request(request))


class OlderScheduler(Scheduler):
    """vLLM 0.22.1: blocked requests wait in a queue of their own, and only running ones take slots."""

    _inflight_prefills: Any = UNKNOWN
    prefill_capacity_bound = False
    current_step = 0
    num_prefill_lookahead = 0
    need_mamba_block_aligned_split: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._aligns_spans = self.need_mamba_block_aligned_split
        if self.num_spec_tokens and self.connector is None and not compat.problems("pacing"):
            # The one place where this version lets a subclass say how many tokens a chunk has.
            self.need_mamba_block_aligned_split = True

    def schedule(self, _throttle_prefills: bool = False) -> Any:
        """Schedule a step; this version knows no throttle, and never asks for one."""
        return super().schedule()

    @property
    def admission_queue(self) -> Sized:
        """The waiting requests in the order in which the scheduler looks at them; paused sessions take no part."""
        queue = [request for request in (*self.skipped_waiting, *self.waiting) if not _is_paused_session(request)]
        return sorted(queue) if self.policy is SchedulingPolicy.PRIORITY else queue

    def unblocked(self, request: Any) -> bool:
        """Tell whether a waiting request can be scheduled, once what it waits for is checked anew."""
        grammar = getattr(request.structured_output_request, "_grammar", None)
        if isinstance(grammar, Future) and not grammar.done():
            return False  # this version would wait a little for it
        blocked = self._is_blocked_waiting_status(request.status)
        return not blocked or bool(self._try_promote_blocked_waiting_request(request))

    @property
    def kv_holding_waiting(self) -> Sized:
        """The waiting requests that the scheduler looks at before those of `waiting`."""
        return self.skipped_waiting

    @property
    def max_num_active_reqs(self) -> int:
        """How many requests may run or be paused sessions; here paused ones take no slot."""
        return self.max_num_running_reqs + self.num_waiting_for_streaming_input

    @max_num_active_reqs.setter
    def max_num_active_reqs(self, count: int) -> None:
        self.max_num_running_reqs = count - self.num_waiting_for_streaming_input

    def _reserve_prefill_lookahead(self, _request: Any, _num_computed_tokens: int, num_new_tokens: int) -> int:
        """Return the chunk as it is: no draft model of this version looks ahead in a prompt."""
        return num_new_tokens

    def _mamba_block_aligned_split(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """Return how many of the new tokens this step computes."""
        known = num_new_local_computed_tokens + num_external_computed_tokens
        if self._aligns_spans:
            num_new_tokens = super()._mamba_block_aligned_split(
                request, num_new_tokens, num_new_local_computed_tokens, num_external_computed_tokens
            )
        if num_new_tokens <= 0:
            return num_new_tokens
        return self._reserve_prefill_lookahead(request, request.num_computed_tokens + known, num_new_tokens)


def _is_paused_session(request: Any) -> bool:
    return bool(request.status is RequestStatus.WAITING_FOR_STREAMING_REQ)


_TAKES_THROTTLE: Final = "throttle_prefills" in inspect.signature(Scheduler.schedule).parameters

StockScheduler: Any = NewerScheduler if _TAKES_THROTTLE else OlderScheduler
"""The base of Paceline's scheduler on the engine installed here."""
