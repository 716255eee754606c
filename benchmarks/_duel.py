"""A paced engine against one with an alternative of stock vLLM, block by block: the rate at equal TTFT."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from _engine import BenchmarkEngine
from _formula import RATE, WAIT, undisturbed

from paceline.bench.engine import EngineAddress
from paceline.bench.measuring_process import run_in_process
from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.protocol import ProgressEvent, ProgressKind
from paceline.bench.records import ArmResult, BlockRecord, Metric, RequestRecord
from paceline.bench.runner import EngineLimits


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


@dataclass(frozen=True)
class Turn:
    """A block of a stock engine, and the blocks of the paced arms beside it."""

    stock: Mapping[Metric, float]
    paced: Mapping[str, Mapping[Metric, float]]

    @property
    def ratio(self) -> float:
        """The paced rate at the stock engine's TTFT over the stock engine's rate."""
        return rate_at(list(self.paced.values()), self.stock[WAIT])[0] / self.stock[RATE]


def best_of(blocks: Sequence[Mapping[Metric, float]]) -> dict[Metric, float]:
    """Return the rate and the TTFT of an engine whose machine nobody disturbs."""
    return {
        metric: undisturbed([block[metric] for block in blocks], higher_is_better=metric.higher_is_better)
        for metric in (RATE, WAIT)
    }


def around(arms: Mapping[str, ArmResult], wait: float) -> list[str]:
    """Return the names of the three arms whose TTFTs are nearest to a wait; both vary from block to block."""
    nearest = sorted(arms, key=lambda name: abs(math.log(arms[name].metrics[WAIT].value / wait)))
    return nearest[:3]


def rate_at(points: Sequence[Mapping[Metric, float]], wait: float) -> tuple[float, bool]:
    """Return a resident's rate on the paced frontier at a TTFT, and whether it lies between two of the points.

    Every cadence lies on a line of rate against 1/TTFT, so the points are joined in those terms.
    """
    inverse, rates = (
        np.array(values) for values in zip(*sorted((1 / each[WAIT], each[RATE]) for each in points), strict=True)
    )
    return float(np.interp(1 / wait, inverse, rates)), bool(inverse[0] <= 1 / wait <= inverse[-1])


@dataclass(frozen=True)
class Duel:
    """A paced engine and one with an alternative, which run blocks of the same workload by turns."""

    paced: BenchmarkEngine
    stock: BenchmarkEngine
    workload: MixedPhase
    limits: Mapping[str, EngineLimits]
    """Of "paced" and of "stock"."""

    async def block(self, arm: Arm | None, seed: int) -> Mapping[Metric, float]:
        """Run one block of an arm, of the stock engine where there is none, and return its metrics."""

        async def nothing(arm: Arm) -> int | None:
            del arm
            return None

        side = "paced" if arm else "stock"
        plan = ExperimentPlan(
            name="duel",
            workload=self.workload,
            arms=(arm or Arm(name="stock"),),
            blocks=1,
            warm_up_blocks=0,
            control_arm=False,
            seed=seed,
        )
        address = self.paced.address if arm else EngineAddress(self.stock.address.url)
        apply = self.paced.apply if arm else nothing
        sink = Kept(arm.name if arm else "stock")
        result = await run_in_process(plan, address, apply, sink, self.limits[side])
        if not result.arms[0].valid:
            raise RuntimeError(f"a block of {plan.arms[0].name} does not count: {', '.join(result.arms[0].reasons)}")
        return sink.blocks[0].metrics

    async def run(self, frontier: ExperimentPlan, arms: Mapping[str, ArmResult], turns: int) -> list[Turn]:
        """Run one block to warm up, then by turns the stock engine and the paced arms with the nearest TTFTs."""
        nearest = around(arms, (await self.block(None, 0))[WAIT])
        paced = [arm for arm in frontier.arms if arm.name in nearest]
        found = []
        for number in range(1, turns + 1):
            order: list[Arm | None] = [None, *paced][:: 1 if number % 2 else -1]
            blocks = {arm.name if arm else "": await self.block(arm, number) for arm in order}
            found.append(Turn(blocks.pop(""), blocks))
        return found


def middle(values: Sequence[float]) -> list[float]:
    """Return the median, the least and the greatest of values."""
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]


def compared(name: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Print and return what an alternative gave, and the ratio of what pacing gave by turns with it."""
    stock = best_of([turn.stock for turn in turns])
    paced = {arm: best_of([turn.paced[arm] for turn in turns]) for arm in turns[0].paced}
    rate, within = rate_at(list(paced.values()), stock[WAIT])
    by_turn = middle([turn.ratio for turn in turns])
    print(
        f"{name:<42} resident {stock[RATE]:8.3f} tok/s, TTFT {stock[WAIT]:8.3f} s, paced at that TTFT "
        f"x{rate / stock[RATE]:.2f} (turn by turn {by_turn[0]:.2f}, {by_turn[1]:.2f} to {by_turn[2]:.2f})",
        flush=True,
    )
    return {
        RATE.value: round(stock[RATE], 3),
        WAIT.value: round(stock[WAIT], 3),
        "pacedRateAtItsTtft": round(rate, 3),
        "ratio": round(rate / stock[RATE], 3),
        "ttftBetweenThePacedArms": within,
        "pacedArms": {
            arm: {metric.value: round(value, 3) for metric, value in own.items()} for arm, own in paced.items()
        },
        "ratiosByTurn": [round(turn.ratio, 3) for turn in turns],
    }
