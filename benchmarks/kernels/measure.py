"""Times the two sides of the kernel benchmark by turns, so that a machine that slows down slows all of them down."""

import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import torch
from cases import Case, sides
from instructions import InstructionSet
from peak import Peak

PAGES: Final = (768, 784, 800, 816, 896)
ODD_PAGES: Final = {784, 816}
"""Pages on which vLLM has its slower kernel only."""
VARIANTS: Final = (
    ("float32", torch.float32, InstructionSet.ALL),
    ("bfloat16", torch.bfloat16, InstructionSet.ALL),
    ("bfloat16 without AMX", torch.bfloat16, InstructionSet.NO_AMX),
)
AVX2_VARIANTS: Final = (
    ("float32 on AVX2", torch.float32, InstructionSet.AVX2),
    ("bfloat16 on AVX2", torch.bfloat16, InstructionSet.AVX2),
)
type Variant = tuple[str, torch.dtype, InstructionSet]
DECODE_CONTEXT: Final = 8_192


@dataclass(frozen=True)
class Effort:
    """Contexts in tokens, each with its number of rounds; the short ones cost little and need more."""

    rounds: dict[int, int]
    decode_rounds: int
    thread_rounds: int


QUICK: Final = Effort({2_048: 5}, 30, 5)
THOROUGH: Final = Effort({1_024: 11, 4_096: 5, 32_768: 2}, 100, 11)


def by_turns[Key: Hashable](
    calls: dict[Key, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[Key, list[float]]:
    """Time calls that have run once before by turns, each round in the other order; seconds by name."""
    seconds: dict[Key, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            start = clock()
            calls[name]()
            seconds[name].append(clock() - start)
    return seconds


def _ratio(seconds: dict[Any, list[float]], page: int) -> dict[str, Any]:
    ratios = sorted(a / b for a, b in zip(seconds[page, "vllm"], seconds[page, "paceline"], strict=True))
    return {
        "vllmMs": round(statistics.median(seconds[page, "vllm"]) * 1e3, 3),
        "pacelineMs": round(statistics.median(seconds[page, "paceline"]) * 1e3, 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratioRange": [round(ratios[0], 3), round(ratios[-1], 3)],
    }


def _show(row: dict[str, Any]) -> dict[str, Any]:
    print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    return row


def _cases(variant: Variant, context: int, **shape: Any) -> dict[int, Case]:
    _, dtype, instructions = variant
    return {page: Case(dtype, page, context, instructions, **shape) for page in PAGES}


def _time(cases: dict[int, Case], rounds: int) -> dict[tuple[int, str], list[float]]:
    calls = {(page, side): call for page, case in cases.items() for side, call in sides(case).items()}
    for page in PAGES:
        torch.testing.assert_close(calls[page, "vllm"](), calls[page, "paceline"](), atol=4e-3, rtol=2e-2)
    return by_turns(calls, rounds)


def measure(variants: tuple[Variant, ...], effort: Effort) -> dict[str, Any]:
    """Measure prefills, decoding rows and two threads of every variant."""
    torch.set_num_threads(1)
    peak, prefill, decoding, threads = Peak(), [], [], {}
    for variant in variants:
        prefill += measure_prefill(variant, effort, peak)
        decoding += measure_decoding(variant, effort)
        threads[variant[0]] = measure_threads(variant, effort)
    return {"prefill": prefill, "decoding": decoding, "twoThreads": threads}


def measure_prefill(variant: Variant, effort: Effort, peak: Peak) -> list[dict[str, Any]]:
    """Time chunks of 784 queries at the end of every context; `pageFactor` is a page's time over the fastest page's."""
    rows = []
    for context, rounds in effort.rounds.items():
        cases = _cases(variant, context)
        before = peak.gflops(cases[784].level)
        seconds = _time(cases, rounds)
        after = peak.gflops(cases[784].level)
        best = {page: statistics.median(seconds[page, "paceline"]) for page in PAGES}
        for page, case in cases.items():
            rate = case.flops / best[page] / 1e9
            row = {"variant": variant[0], "page": page, "context": context, "vllmKernel": case.stock_kernel}
            row |= {"level": case.level, **_ratio(seconds, page), "gflops": round(rate, 1)}
            row["peakFraction"] = round(2 * rate / (before + after), 3) if before and after else None
            row["pageFactor"] = round(best[page] / min(best.values()), 4)
            rows.append(_show(row))
    return rows


def measure_decoding(variant: Variant, effort: Effort) -> list[dict[str, Any]]:
    """Time one decoding row of a long sequence."""
    cases = _cases(variant, DECODE_CONTEXT, rows=1)
    seconds = _time(cases, effort.decode_rounds)
    row = {"variant": variant[0], "rows": 1, "context": DECODE_CONTEXT}
    return [
        _show({**row, "page": page, "vllmKernel": case.stock_kernel, "level": case.level, **_ratio(seconds, page)})
        for page, case in cases.items()
    ]


def measure_threads(variant: Variant, effort: Effort) -> dict[str, float]:
    """Return how much faster two threads are than one at page 784, by the clock on the wall, for both sides."""
    _, dtype, instructions = variant
    threads = torch.get_num_threads()
    calls = {}
    for count in (1, 2):
        torch.set_num_threads(count)
        for side, call in sides(Case(dtype, 784, 4_096, instructions)).items():  # vLLM plans for a number of threads
            calls[side, count] = _on_threads(count, call)
            call()
    seconds = by_turns(calls, effort.thread_rounds, time.perf_counter)
    torch.set_num_threads(threads)
    speedup = {side: min(seconds[side, 1]) / min(seconds[side, 2]) for side in ("vllm", "paceline")}
    print(f"{variant[0]}: two threads over one {speedup}", flush=True)
    return {side: round(value, 3) for side, value in speedup.items()}


def _on_threads(count: int, call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        torch.set_num_threads(count)
        call()

    return run
