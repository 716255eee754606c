"""vLLM's own prefill interval on one engine, for comparison only.

Stock vLLM obeys `--prefill-schedule-interval` in the engine cores of data-parallel mixture-of-experts models alone.
`pacing_frontier.py` starts its engine with this scheduler in place of vLLM's own: it counts the steps and throttles as
that engine core does, and the rest is vLLM's code as it is.
"""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class IntervalScheduler(Scheduler):
    """vLLM's scheduler; all but every N-th step are throttled, counted from when the engine was last idle."""

    steps = 0

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Schedule a step, throttled unless its number is a multiple of the interval."""
        interval = self.scheduler_config.prefill_schedule_interval
        throttled = interval > 1 and self.steps % interval != 0
        self.steps = self.steps + 1 if self.running or self.waiting else 0
        return super().schedule(throttle_prefills or throttled)
