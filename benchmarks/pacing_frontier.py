"""The frontier of a resident's tokens per second against a newcomer's TTFT, and what stock vLLM offers instead.

A real engine on CPU with the tiny model. Residents decode while a cold prompt is prefilled, under N = 0, 2, 4, 8, 16,
in blocks that alternate on one engine; the pacing formula predicts every arm from the unpaced one. Then what a user
would do without Paceline, on a second engine with vLLM's own scheduler: a smaller max_num_batched_tokens, a
long_prefill_token_threshold, or a prefill interval, which vLLM 0.32 keeps for data-parallel engines (here driven as
their cores do, by interval_scheduler.py). Each alternates block by block with the paced arms whose TTFTs are nearest
to its own, and is compared with what pacing gives at the TTFT that it had itself.

A shared machine changes its speed. So the formula predicts each paced block from the unpaced ones of its own round,
and the median of the rounds counts. Beside it stand the best quarters of each arm's blocks, those that nobody
disturbed, and the formula's error against each paced block's own mixed and decode steps, as the engine recorded them.

A CPU engine has a worker process besides, for which its core spins while it computes, as `paceline up` starts it too.
With --one-process there is none: quieter on two cores, and its steps cost less beside their tokens.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, __file__.rpartition("/")[0])
from _common import ENGINE_PYTHON, ROOT, Target, arguments, report, versions
from _duel import Duel, Kept, compared
from _engine import ONE_PROCESS, ONE_PROCESS_ENV, BenchmarkEngine, example_spec, running_engine
from _formula import RATE, WAIT, errors_by_round, own_steps_error, undisturbed_arms

from paceline.bench.measuring_process import run_in_process
from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.records import ArmResult, BlockRecord, ExperimentResult, Metric
from paceline.bench.runner import EngineLimits
from paceline.bench.simulator.calibrate import Stored, calibrate
from paceline.bench.simulator.exchange import SimulatedArm, SimulationRequest, SimulationResult
from paceline.bench.simulator.hardware import HardwareError
from paceline.engine_ext.settings import PacingMode, PacingSettings
from paceline.operator.api.v1alpha1 import InferenceProfileSpec

STOCK_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
INTERVAL_SCHEDULER = "interval_scheduler.IntervalScheduler"
MAX_ERROR = 0.10
OWN_STEPS = "rateErrorByOwnSteps"
BY_ROUND = "ErrorByRound"
UNDISTURBED = "undisturbed"
RESIDENTS = 2


@dataclass(frozen=True)
class Alternative:
    """A way to soften a prefill that stock vLLM has, fixed at the engine's start."""

    name: str
    budget: int | None = None
    arguments: tuple[str, ...] = ()
    scheduler: str = STOCK_SCHEDULER


DECODERS_ROOM = 16
"""Tokens of a step's budget beside the prefill's chunk, for the residents."""


def alternatives(block: int) -> list[Alternative]:
    """Return stock vLLM's ways for a model whose states lie `block` tokens apart: no chunk of it can be smaller."""
    return [
        Alternative(f"max_num_batched_tokens={block + DECODERS_ROOM}", budget=block + DECODERS_ROOM),
        Alternative(f"long_prefill_token_threshold={block}", arguments=("--long-prefill-token-threshold", str(block))),
        *(
            Alternative(
                f"prefill_schedule_interval={n}, as if data-parallel",
                arguments=("--prefill-schedule-interval", str(n)),
                scheduler=INTERVAL_SCHEDULER,
            )
            for n in (4, 8)
        ),
    ]


@dataclass(frozen=True)
class Scope:
    """What a run measures: the paced arms with their blocks, and how many alternatives in how many turns each."""

    workload: MixedPhase
    intervals: Sequence[int]
    blocks: int
    alternatives: int | None
    turns: int
    one_process: bool
    budget: int | None


def profile(budget: int | None = None, extra: Sequence[str] = ()) -> InferenceProfileSpec:
    """Return the example's profile of the tiny model on CPU, with another step limit or more arguments."""
    spec = example_spec("cpu-tiny.yaml", "model.sh")
    spec["engine"]["extraArgs"] = [*spec["engine"].get("extraArgs", []), *extra]
    if budget is not None:
        spec["engine"]["maxNumBatchedTokens"] = budget
    return InferenceProfileSpec.model_validate(spec)


def environment(spec: InferenceProfileSpec, *, one_process: bool) -> dict[str, str]:
    """Return the profile's own environment variables, and what one process for the whole engine core needs."""
    own = {variable.name: variable.value or "" for variable in spec.engine.env}
    return own | (ONE_PROCESS_ENV if one_process else {})


def limits(spec: InferenceProfileSpec) -> EngineLimits:
    return EngineLimits(spec.engine.max_num_batched_tokens, spec.engine.max_num_seqs)


def frontier_plan(workload: MixedPhase, intervals: Sequence[int], blocks: int) -> ExperimentPlan:
    paced = (
        Arm(name=f"n={n}", pacing=PacingSettings(mode=PacingMode.FIXED, interval=n) if n else PacingSettings())
        for n in intervals
    )
    return ExperimentPlan(name="frontier", workload=workload, arms=tuple(paced), blocks=blocks, control_arm=blocks > 1)


async def run_paced(
    engine: BenchmarkEngine, plan: ExperimentPlan, spec: InferenceProfileSpec
) -> tuple[ExperimentResult, list[BlockRecord]]:
    sink = Kept("paceline")
    return await run_in_process(plan, engine.address, engine.apply, sink, limits(spec)), sink.blocks


def row(arm: ArmResult) -> dict[str, Any]:
    """Return an arm's medians with their intervals, the formula's prediction, and its error."""
    shown: dict[str, Any] = {"valid": arm.valid, "reasons": list(arm.reasons)}
    for metric in (Metric.RESIDENT_RATE_BEFORE, RATE, WAIT):
        if metric in arm.metrics:
            found = arm.metrics[metric]
            shown[metric.value] = [round(value, 3) for value in (found.value, found.low, found.high)]
    for metric, predicted in arm.predicted.items():
        if metric in arm.metrics:
            shown[f"{metric.value}Predicted"] = round(predicted, 3)
            shown[f"{metric.value}Error"] = round(predicted / arm.metrics[metric].value - 1, 4)
    return shown


def simulated(plan: ExperimentPlan, result: ExperimentResult, blocks: list[BlockRecord]) -> dict[str, Any]:
    """Calibrate the simulator by the run and return its own error on every arm."""
    try:
        hardware = calibrate("this-run", [Stored(plan, result.engine, blocks)])
    except HardwareError as error:
        return {"simulated": True, "notCalibrated": str(error)}
    arms = tuple(SimulatedArm(name=arm.name, pacing=arm.pacing) for arm in plan.arms)
    with tempfile.TemporaryDirectory(prefix="frontier-simulated-") as name:
        asked, answer = Path(name) / "request.json", Path(name) / "result.json"
        request = SimulationRequest(hardware=hardware, workload=hardware.workload, arms=arms)
        asked.write_text(request.model_dump_json(by_alias=True, exclude_none=True))
        command = [str(ENGINE_PYTHON), "-P", "-m", "paceline.bench.simulator", str(asked), str(answer)]
        subprocess.run(command, check=True, cwd=name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = SimulationResult.model_validate_json(answer.read_bytes())
    measured = {arm.arm: arm.metrics for arm in result.arms}
    return {
        "simulated": True,
        "hardware": hardware.model_dump(mode="json", by_alias=True),
        "errors": {
            each.arm: {
                metric.value: round(each.metrics[metric] / measured[each.arm][metric].value - 1, 4)
                for metric in (RATE, WAIT)
                if metric in measured[each.arm]
            }
            for each in found.figures
        },
    }


def by_round(arm: Arm, plan: ExperimentPlan, blocks: Mapping[str, Sequence[BlockRecord]]) -> dict[str, list[float]]:
    """Return the formula's errors on a paced arm, round by round: the median with the middle half."""
    found = errors_by_round(arm, plan, blocks)
    return {
        f"{metric.value}{BY_ROUND}": [round(value, 4) for value in middle_half(values)]
        for metric, values in found.items()
        if values
    }


def middle_half(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of values and the ends of their middle half; of one value the value."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return middle, low, high


def block_row(block: BlockRecord) -> dict[str, Any]:
    """Return a block as it was measured, for whoever wants to reckon otherwise."""
    steps = block.prefill_steps
    return {
        "arm": block.arm,
        "round": block.block,
        "warmUp": block.warm_up,
        **{metric.value: round(value, 4) for metric, value in block.metrics.items()},
        "mixedStepSeconds": steps and steps.mean_chunk_step_seconds,
        "decodeStepSeconds": steps and steps.mean_other_step_seconds,
        "chunks": steps and steps.chunks,
    }


def show(name: str, arm: Mapping[str, Any]) -> None:
    best_blocks = arm[UNDISTURBED]
    said = f"resident {best_blocks[RATE.value]:8.3f} tok/s, TTFT {best_blocks[WAIT.value]:8.3f} s"
    said += f"; medians {arm[RATE.value][0]:.3f} and {arm[WAIT.value][0]:.3f}"
    if f"{RATE.value}{BY_ROUND}" in arm:
        rounds = " and ".join("{:+.1%} ({:+.1%} to {:+.1%})".format(*arm[f"{m.value}{BY_ROUND}"]) for m in (RATE, WAIT))
        said += f"; formula off by {rounds} round by round, undisturbed by {errors_of(best_blocks)}"
        said += f", by the blocks' own steps {arm[OWN_STEPS]:+.1%}"
    print(f"{name:<42} {said}", flush=True)


def errors_of(arm: Mapping[str, Any]) -> str:
    return " and ".join(f"{arm[f'{metric.value}Error']:+.1%}" for metric in (RATE, WAIT))


def measure(folder: Path, scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the paced engine, then a stock engine for each alternative; return figures and targets."""
    extra = ONE_PROCESS if scope.one_process else ()
    spec, plan = profile(scope.budget, extra), frontier_plan(scope.workload, scope.intervals, scope.blocks)
    env = environment(spec, one_process=scope.one_process)
    stock_env = env | {"PYTHONPATH": str(ROOT / "benchmarks")}  # where interval_scheduler.py is
    with running_engine(spec, folder / "paced", env=env) as paced:
        result, kept = asyncio.run(run_paced(paced, plan, spec))
        figures, targets, arms = frontier(plan, result, kept)
        sized = scope.workload.sized(result.arms[0].injected_prompt_tokens)
        block = int(result.engine.cache_config["block_size"])
        for number, alternative in enumerate(alternatives(block)[: scope.alternatives]):
            other = profile(alternative.budget or scope.budget, [*extra, *alternative.arguments])
            with running_engine(other, folder / f"stock-{number}", alternative.scheduler, stock_env) as stock:
                duel = Duel(paced, stock, sized, {"paced": limits(spec), "stock": limits(other)})
                shown = compared(alternative.name, asyncio.run(duel.run(plan, arms, scope.turns)))
            figures["alternatives"][alternative.name] = shown
            what = f"paced resident tok/s at the TTFT of stock with {alternative.name}"
            targets[what] = Target(1.0, shown["ratio"], at_least=True)
    return {"oneProcess": scope.one_process, "budgetTokens": spec.engine.max_num_batched_tokens} | figures, targets


def frontier(
    plan: ExperimentPlan, result: ExperimentResult, kept: list[BlockRecord]
) -> tuple[dict[str, Any], dict[str, Target], dict[str, ArmResult]]:
    """Return the frontier's figures and targets, and its valid arms by name."""
    sized = plan.workload.sized(result.arms[0].injected_prompt_tokens)
    arms = {arm.arm: arm for arm in result.arms if arm.arm in {own.name for own in plan.arms} and arm.valid}
    if len(arms) < len(plan.arms):
        print(
            "warning: some arms do not count: " + "; ".join(f"{a.arm}: {a.reasons}" for a in result.arms if not a.valid)
        )
    intervals = {arm.name: arm.pacing.effective_interval for arm in plan.all_arms}
    of_arm = {name: [b for b in kept if b.arm == name and not b.warm_up and not b.problems] for name in intervals}
    figures: dict[str, Any] = {
        "promptTokens": sized.injected_prompt_tokens,
        "stateBlockTokens": int(result.engine.cache_config["block_size"]),
        "residents": RESIDENTS,
        "frontier": {
            arm.arm: row(arm) | {OWN_STEPS: own_steps_error(intervals[arm.arm], of_arm[arm.arm])} for arm in result.arms
        },
        "blocks": [block_row(block) for block in kept],
        "audits": {f"{audit.name} {audit.arm or ''}".strip(): audit.outcome.value for audit in result.audits},
        "alternatives": {},
    }
    least = undisturbed_arms(plan, of_arm)
    for arm in plan.arms:
        figures["frontier"][arm.name] |= {UNDISTURBED: least[arm.name]} | by_round(arm, plan, of_arm)
        show(arm.name, figures["frontier"][arm.name])
    figures["simulator"] = simulated(plan.model_copy(update={"workload": sized}), result, kept)
    errors = {
        metric: [
            abs(arm[key][0]) for arm in figures["frontier"].values() if (key := f"{metric.value}{BY_ROUND}") in arm
        ]
        for metric in (RATE, WAIT)
    }
    targets = {
        f"formula's largest error on {metric.value}, median of the rounds": Target(MAX_ERROR, max(found))
        for metric, found in errors.items()
        if found
    }
    own = [abs(arm[OWN_STEPS]) for arm in figures["frontier"].values() if arm[OWN_STEPS] is not None]
    if own:
        targets["formula's largest error by a block's own steps"] = Target(MAX_ERROR, max(own))
    return figures, targets, arms


def main() -> int:
    parser = arguments(
        __doc__ or "",
        "  benchmarks/pacing_frontier.py --quick            three blocks an arm, two alternatives: some four minutes\n"
        "  benchmarks/pacing_frontier.py --one-process --blocks 20\n"
        "  benchmarks/pacing_frontier.py --intervals 0,4 --alternatives 0",
    )
    parser.add_argument("--intervals", default="0,2,4,8,16", help="the paced arms, 0 among them (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=16, help="blocks an arm (default: 16)")
    parser.add_argument("--prefill-seconds", type=float, default=1, help="length of the unpaced prefill (default: 1)")
    parser.add_argument("--alternatives", type=int, help="how many of stock's ways to run (default: all)")
    parser.add_argument("--turns", type=int, default=12, help="turns each of them gets (default: 12)")
    parser.add_argument(
        "--budget",
        type=int,
        help="max_num_batched_tokens; fewer make more chunks on a slow CPU (default: the example's)",
    )
    parser.add_argument("--one-process", action="store_true", help="run the model in the engine core's process")
    chosen = parser.parse_args()
    scope = Scope(
        workload=MixedPhase(residents=RESIDENTS, target_prefill_seconds=chosen.prefill_seconds, before_seconds=1),
        intervals=tuple(int(interval) for interval in chosen.intervals.split(",")),
        blocks=3 if chosen.quick else chosen.blocks,
        alternatives=2 if chosen.quick and chosen.alternatives is None else chosen.alternatives,
        turns=2 if chosen.quick else chosen.turns,
        one_process=chosen.one_process,
        budget=chosen.budget,
    )
    with tempfile.TemporaryDirectory(prefix="frontier-") as name:
        figures, targets = measure(Path(name), scope)
    return report("pacing_frontier", versions("paceline", "aiohttp") | {"vllm": "0.32.0 (CPU)"}, figures, targets)


if __name__ == "__main__":
    sys.exit(main())
