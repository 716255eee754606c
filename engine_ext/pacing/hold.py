"""The swap: for one call of `schedule()`, held requests stay where they are but compute no new tokens, or only some.

Held requests keep their place in `running`, so the scheduler picks the same victims under cache pressure as without
pacing, and nothing is sent to the workers anew. Waiting requests are held by the scheduler's own pause.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request


class HeldRequest(Request):
    """A request that may compute `paceline_allowed_tokens` in this step, mostly none.

    The scheduler asks for `num_tokens_with_spec + num_output_placeholders - num_computed_tokens` new tokens.
    """

    paceline_allowed_tokens = 0

    @property
    def num_tokens_with_spec(self) -> int:
        """The count of tokens at which the scheduler finds no more than the allowed ones."""
        return self.num_computed_tokens - self.num_output_placeholders + self.paceline_allowed_tokens


@dataclass(frozen=True, slots=True)
class Hold:
    """What is held in one step: the `running` requests given, and the `waiting` ones there are free slots for.

    `allowed_tokens` is what single ones of them may compute nevertheless, by request id; `admit_first` lets the first
    waiting request in: one that was preempted.
    """

    running: Sequence[Any]
    waiting: int
    admit_first: bool = False
    allowed_tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def deferred(self) -> int:
        """How many prefills this hold defers."""
        held_back = sum(not self.allowed_tokens.get(request.request_id) for request in self.running)
        return held_back + self.waiting - self.admit_first


@contextmanager
def held(scheduler: Any, hold: Hold) -> Iterator[None]:
    """Hold requests until the block ends; whatever happens in it, everything is put back."""
    classes = [type(request) for request in hold.running]
    pause, capacity = scheduler._pause_state, scheduler.max_num_active_reqs
    saturated = scheduler.prefill_capacity_bound
    if hold.admit_first:
        used = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        scheduler.max_num_active_reqs = min(capacity, used + 1)
    elif hold.waiting:
        scheduler._pause_state = PauseState.PAUSED_NEW
    for request in hold.running:
        request.__class__ = HeldRequest
        if allowed := hold.allowed_tokens.get(request.request_id):
            request.paceline_allowed_tokens = allowed
    try:
        yield
    finally:
        for request, cls in zip(hold.running, classes, strict=True):
            request.__class__ = cls
            request.__dict__.pop("paceline_allowed_tokens", None)
        scheduler._pause_state, scheduler.max_num_active_reqs = pause, capacity
        # A queue that we hold is no sign of saturation: the data-parallel throttle must not read it as one.
        scheduler.prefill_capacity_bound = saturated
