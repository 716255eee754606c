"""The frontier of a resident's tokens per second against a newcomer's TTFT, and what stock vLLM offers instead.

A real engine on CPU with the tiny model. Residents decode while a cold prompt is prefilled, under N = 0, 2, 4, 8, 16,
in blocks that alternate on one engine; the pacing formula predicts every arm from the unpaced one. Beside it what a
user would do without Paceline, which needs a restart for each: a smaller max_num_batched_tokens, or a
long_prefill_token_threshold, on vLLM's own scheduler. Each is compared at its own TTFT with the paced frontier there.
vLLM 0.32 keeps its prefill interval for data-parallel engines: interval_scheduler.py drives it here as their cores do.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, __file__.rpartition("/")[0])
from _common import ENGINE_PYTHON, ROOT, Target, arguments, report, versions
from _engine import BenchmarkEngine, running_engine

from paceline.bench.engine import EngineAddress
from paceline.bench.measuring_process import run_in_process
from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.protocol import ProgressEvent, ProgressKind
from paceline.bench.records import ArmResult, BlockRecord, ExperimentResult, Metric, RequestRecord
from paceline.bench.runner import EngineLimits
from paceline.bench.simulator.calibrate import Stored, calibrate
from paceline.bench.simulator.exchange import SimulatedArm, SimulationRequest, SimulationResult
from paceline.bench.simulator.hardware import HardwareError
from paceline.engine_ext.settings import PacingMode, PacingSettings
from paceline.operator.api.v1alpha1 import InferenceProfileSpec

RATE, WAIT = Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN
STOCK_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
INTERVAL_SCHEDULER = "interval_scheduler.IntervalScheduler"
MAX_ERROR = 0.10
RESIDENTS = 2
ONE_PROCESS = ("--distributed-executor-backend", "uni")
"""The model runs in the engine core, which would else spin while its worker computes, on one of two cores."""


@dataclass(frozen=True)
class Alternative:
    """A way to soften a prefill that stock vLLM has, fixed at the engine's start."""

    name: str
    budget: int | None = None
    arguments: tuple[str, ...] = ()
    scheduler: str = STOCK_SCHEDULER


ALTERNATIVES = (
    Alternative("max_num_batched_tokens=272", budget=272),
    Alternative("long_prefill_token_threshold=256", arguments=("--long-prefill-token-threshold", "256")),
    *(
        Alternative(
            f"prefill_schedule_interval={n}, as if data-parallel",
            arguments=("--prefill-schedule-interval", str(n)),
            scheduler=INTERVAL_SCHEDULER,
        )
        for n in (4, 8)
    ),
    Alternative("max_num_batched_tokens=528", budget=528),
    Alternative("long_prefill_token_threshold=512", arguments=("--long-prefill-token-threshold", "512")),
)
"""The tiny model's states lie 256 tokens apart, and vLLM cuts its prompts nowhere else: no chunk can be smaller."""


@dataclass(frozen=True)
class Scope:
    """What a run measures: the paced arms with their blocks, and how many alternatives with theirs."""

    workload: MixedPhase
    intervals: Sequence[int]
    blocks: int
    alternatives: int
    alternative_blocks: int


@dataclass
class Kept:
    """Keeps the blocks of a run, and tells its progress."""

    what: str
    blocks: list[BlockRecord] = field(default_factory=list)

    async def event(self, event: ProgressEvent) -> None:
        """Print the size of the prompt and the end of each block."""
        if event.kind in (ProgressKind.PROMPT_SIZED, ProgressKind.BLOCK_FINISHED):
            print(f"{self.what}: block {event.position + 1}/{event.total} {event.arm}: {event.message}", flush=True)

    async def request(self, record: RequestRecord) -> None:
        """Drop a request: the blocks hold what is needed."""
        del record

    async def block(self, record: BlockRecord) -> None:
        """Keep a block."""
        self.blocks.append(record)


def profile(budget: int | None = None, extra: Sequence[str] = ()) -> InferenceProfileSpec:
    """Return the example's profile of the tiny model on CPU, with another step limit or more arguments."""
    done = subprocess.run(["bash", str(ROOT / "scripts/model.sh")], check=True, stdout=subprocess.PIPE, text=True)
    spec = yaml.safe_load((ROOT / "examples" / "cpu-tiny.yaml").read_text())["spec"]
    spec["model"]["source"] = f"file://{done.stdout.strip().splitlines()[-1]}"
    spec["engine"]["extraArgs"] = [*spec["engine"].get("extraArgs", []), *ONE_PROCESS, *extra]
    if budget is not None:
        spec["engine"]["maxNumBatchedTokens"] = budget
    return InferenceProfileSpec.model_validate(spec)


def environment(spec: InferenceProfileSpec) -> dict[str, str]:
    """Return the profile's own environment variables."""
    return {variable.name: variable.value or "" for variable in spec.engine.env}


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


async def run_stock(
    engine: BenchmarkEngine, alternative: Alternative, workload: MixedPhase, blocks: int, spec: InferenceProfileSpec
) -> ArmResult:
    """Measure one arm on vLLM's own scheduler, which has no live settings to apply."""

    async def nothing(arm: Arm) -> int | None:
        del arm

    plan = ExperimentPlan(
        name=alternative.name, workload=workload, arms=(Arm(name="stock"),), blocks=blocks, control_arm=False
    )
    address = EngineAddress(engine.address.url)
    return (await run_in_process(plan, address, nothing, Kept(alternative.name), limits(spec))).arms[0]


def paced_rate_at(arms: Mapping[str, ArmResult], wait: float) -> tuple[float, bool]:
    """Return a resident's rate on the paced frontier at a TTFT, and whether it lies between two measured arms.

    Every cadence lies on a line of rate against 1/TTFT, so the measured points are joined in those terms.
    """
    points = sorted((1 / arm.metrics[WAIT].value, arm.metrics[RATE].value) for arm in arms.values())
    inverse, rates = (np.array(values) for values in zip(*points, strict=True))
    return float(np.interp(1 / wait, inverse, rates)), bool(inverse[0] <= 1 / wait <= inverse[-1])


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


def show(name: str, arm: Mapping[str, Any]) -> None:
    rate, wait = arm.get(RATE.value, ["-"]), arm.get(WAIT.value, ["-"])
    errors = [f"{arm[f'{metric.value}Error']:+.1%}" for metric in (RATE, WAIT) if f"{metric.value}Error" in arm]
    said = f", formula off by {' and '.join(errors)}" if errors else ""
    said += f", paced x{arm['ratio']:.2f} at this TTFT" if "ratio" in arm else ""
    print(f"{name:<42} resident {rate[0]:>8} tok/s, TTFT {wait[0]:>8} s{said}", flush=True)


def measure(folder: Path, scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the paced engine, then a stock engine for each alternative; return figures and targets."""
    spec, plan = profile(), frontier_plan(scope.workload, scope.intervals, scope.blocks)
    with running_engine(spec, folder, env=environment(spec)) as engine:
        result, kept = asyncio.run(run_paced(engine, plan, spec))
    sized = scope.workload.sized(result.arms[0].injected_prompt_tokens)
    arms = {arm.arm: arm for arm in result.arms if arm.arm in {own.name for own in plan.arms} and arm.valid}
    if len(arms) < len(plan.arms):
        print(
            "warning: some arms do not count: " + "; ".join(f"{a.arm}: {a.reasons}" for a in result.arms if not a.valid)
        )
    figures: dict[str, Any] = {
        "promptTokens": sized.injected_prompt_tokens,
        "residents": RESIDENTS,
        "frontier": {arm.arm: row(arm) for arm in result.arms},
        "audits": {f"{audit.name} {audit.arm or ''}".strip(): audit.outcome.value for audit in result.audits},
        "simulator": simulated(plan.model_copy(update={"workload": sized}), result, kept),
        "alternatives": {},
    }
    for name, arm in figures["frontier"].items():
        show(name, arm)
    errors = {
        metric: [abs(arm.predicted[metric] / arm.metrics[metric].value - 1) for arm in arms.values() if arm.predicted]
        for metric in (RATE, WAIT)
    }
    targets: dict[str, Target] = {
        f"formula's largest error on {metric.value}": Target(MAX_ERROR, max(found))
        for metric, found in errors.items()
        if found
    }
    for alternative in ALTERNATIVES[: scope.alternatives]:
        other = profile(alternative.budget, alternative.arguments)
        env = environment(other) | {"PYTHONPATH": str(ROOT / "benchmarks")}
        with running_engine(other, folder, alternative.scheduler, env) as engine:
            stock = asyncio.run(run_stock(engine, alternative, sized, scope.alternative_blocks, other))
        shown = row(stock)
        if stock.valid and arms:
            rate, within = paced_rate_at(arms, stock.metrics[WAIT].value)
            shown |= {"pacedRateAtItsTtft": round(rate, 3), "withinTheMeasuredFrontier": within}
            ratio = rate / stock.metrics[RATE].value
            shown["ratio"] = round(ratio, 4)
            targets[f"paced resident tok/s at the TTFT of stock with {alternative.name}"] = Target(
                1.0, ratio, at_least=True
            )
        show(alternative.name, shown)
        figures["alternatives"][alternative.name] = shown
    return figures, targets


def main() -> int:
    parser = arguments(
        __doc__ or "",
        "  benchmarks/pacing_frontier.py --quick            one block an arm, two alternatives: some four minutes\n"
        "  benchmarks/pacing_frontier.py --blocks 5 --prefill-seconds 12\n"
        "  benchmarks/pacing_frontier.py --intervals 0,4 --alternatives 0",
    )
    parser.add_argument("--intervals", default="0,2,4,8,16", help="the paced arms, 0 among them (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=3, help="blocks an arm (default: 3)")
    parser.add_argument("--prefill-seconds", type=float, default=8, help="length of the unpaced prefill (default: 8)")
    parser.add_argument("--alternatives", type=int, default=len(ALTERNATIVES), help="how many of stock's ways to run")
    parser.add_argument("--alternative-blocks", type=int, default=3, help="blocks each of them gets (default: 3)")
    chosen = parser.parse_args()
    seconds = 4.0 if chosen.quick else chosen.prefill_seconds
    scope = Scope(
        workload=MixedPhase(residents=RESIDENTS, target_prefill_seconds=seconds),
        intervals=tuple(int(interval) for interval in chosen.intervals.split(",")),
        blocks=1 if chosen.quick else chosen.blocks,
        alternatives=min(2, chosen.alternatives) if chosen.quick else chosen.alternatives,
        alternative_blocks=1 if chosen.quick else chosen.alternative_blocks,
    )
    with tempfile.TemporaryDirectory(prefix="frontier-") as name:
        figures, targets = measure(Path(name), scope)
    return report("pacing_frontier", versions("paceline", "aiohttp") | {"vllm": "0.32.0 (CPU)"}, figures, targets)


if __name__ == "__main__":
    sys.exit(main())
