"""The scheduler that `--scheduler-cls` names: vLLM's own, with Paceline's mixins before it.

Pacing comes first: it decides whether prefills run in a step. Coalescing decides how far a prefill that runs goes. Both
read the live settings in `self.live`.
"""

from typing import Any, Self

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from paceline.engine_ext.coalescing.scheduler import CoalescingMixin
from paceline.engine_ext.pacing.mixin import PacingMixin


# vLLM calls PacingMixin's schedule(); the one behind it takes what it is handed on, whatever the version calls it.
class PacedScheduler(PacingMixin, CoalescingMixin, AsyncScheduler):  # type: ignore[misc]
    """The scheduler for engines that schedule asynchronously; makes a `SynchronousPacedScheduler` for those that don't.

    vLLM takes one class by name for both, and an asynchronous scheduler on a synchronous engine would leave the
    placeholders of its draft tokens in requests that the worker drafted nothing for.
    """

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Self:
        """Choose the class by the engine's configuration."""
        is_async = vllm_config.scheduler_config.async_scheduling
        return super().__new__(cls if is_async else SynchronousPacedScheduler)


class SynchronousPacedScheduler(PacedScheduler):
    """The same for an engine that waits for each step's output: the plain scheduler's bookkeeping."""

    _update_after_schedule = Scheduler._update_after_schedule
    _update_request_with_output = Scheduler._update_request_with_output
