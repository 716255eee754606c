"""Times the two sides of the kernel benchmark by turns, so that a machine that slows down slows all of them down."""

import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import torch
from _common import Target
from cases import Case, prepare, sides
from instructions import InstructionSet
from peak import Peak

PAGES: Final = (768, 784, 800, 816, 896)
ODD_PAGES: Final = {784, 816}
"""Pages on which vLLM has its slower kernel only."""
VARIANTS: Final = {
    InstructionSet.ALL: (
        ("float32", torch.float32, InstructionSet.ALL),
        ("bfloat16", torch.bfloat16, InstructionSet.ALL),
        ("bfloat16 without AMX", torch.bfloat16, InstructionSet.NO_AMX),
    ),
    InstructionSet.NO_AMX: (("bfloat16 without AMX", torch.bfloat16, InstructionSet.NO_AMX),),
    InstructionSet.AVX2: (
        ("float32 on AVX2", torch.float32, InstructionSet.AVX2),
        ("bfloat16 on AVX2", torch.bfloat16, InstructionSet.AVX2),
    ),
}
"""What is compared, by what the benchmark is limited to."""
type Variant = tuple[str, torch.dtype, InstructionSet]
DECODE_CONTEXT: Final = 8_192


@dataclass(frozen=True)
class Effort:
    """Contexts in tokens, each with its number of rounds; the short ones cost little and need more."""

    rounds: dict[int, int]
    decode_rounds: int
    page_rounds: dict[int, int]
    thread_rounds: int


QUICK: Final = Effort({2_048: 5}, 30, {2_048: 10}, 5)
THOROUGH: Final = Effort(
    {1_024: 9, 2_048: 7, 4_096: 5, 8_192: 4, 16_384: 3, 32_768: 2}, 100, {2_048: 60, 16_384: 16}, 15
)


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
    """Measure prefills, decoding rows, pages and two threads of every variant that differs on this processor."""
    prepare()
    torch.set_num_threads(1)
    peak = Peak()
    prefill, decoding, pages, threads = [], [], [], []
    for variant in variants:
        if len(variants) > 1 and variant[2] is InstructionSet.NO_AMX and not torch.cpu._is_amx_tile_supported():
            continue
        prefill += measure_prefill(variant, effort, peak)
        decoding += measure_decoding(variant, effort)
        pages += measure_pages(variant, effort)
        threads.append(measure_threads(variant, effort, peak))
    return {"prefill": prefill, "decoding": decoding, "pages": pages, "twoThreads": threads}


def measure_prefill(variant: Variant, effort: Effort, peak: Peak) -> list[dict[str, Any]]:
    """Time chunks of 784 queries at the end of every context.

    Rates are of the fastest round, ratios to vLLM of every round's pair: what else uses the machine only adds to a
    time.
    """
    rows = []
    for context, rounds in effort.rounds.items():
        cases = _cases(variant, context)
        before = peak.gflops(cases[784].level)
        seconds = _time(cases, rounds)
        after = peak.gflops(cases[784].level)
        for page, case in cases.items():
            rate = case.flops / min(seconds[page, "paceline"]) / 1e9
            row = {"variant": variant[0], "page": page, "context": context, "vllmKernel": case.stock_kernel}
            row |= {"level": case.level, **_ratio(seconds, page), "gflops": round(rate, 1)}
            row["peakFraction"] = round(2 * rate / (before + after), 3) if before and after else None
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


def measure_pages(variant: Variant, effort: Effort) -> list[dict[str, Any]]:
    """Return each page's time over the fastest page's, ours alone, of the fastest of many rounds."""
    rows = []
    for context, rounds in effort.page_rounds.items():
        calls = {page: sides(case)["paceline"] for page, case in _cases(variant, context).items()}
        for call in calls.values():
            call()
        fastest = {page: min(seconds) for page, seconds in by_turns(calls, rounds).items()}
        factors = {page: round(seconds / min(fastest.values()), 4) for page, seconds in fastest.items()}
        rows.append(_show({"variant": variant[0], "context": context, "factors": factors}))
    return rows


def measure_threads(variant: Variant, effort: Effort, peak: Peak) -> dict[str, Any]:
    """Return how much faster two threads are than one at page 784, by the clock on the wall: both sides and a bound.

    `machine` is the same figure of a loop without memory or waiting: what two threads can be here at that moment. Of
    each, the fastest round counts: others had to share the machine.
    """
    _, dtype, instructions = variant
    case = Case(dtype, 784, 4_096, instructions)
    threads = torch.get_num_threads()
    calls = {}
    for count in (1, 2):
        torch.set_num_threads(count)
        for side, call in sides(case).items():  # vLLM plans for a number of threads
            calls[side, count] = _on_threads(count, call)
            call()
    seconds = by_turns(calls, effort.thread_rounds, time.perf_counter)
    torch.set_num_threads(threads)
    speedup = {side: min(seconds[side, 1]) / min(seconds[side, 2]) for side in ("vllm", "paceline")}
    speedup["machine"] = peak.two_threads_over_one(case.level)
    return _show({"variant": variant[0], **{side: round(value, 3) for side, value in speedup.items()}})


def _on_threads(count: int, call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        torch.set_num_threads(count)
        call()

    return run


def targets(figures: dict[str, Any]) -> dict[str, Target]:
    """Hold the figures against the targets: for prefills the median over the contexts of each page, the worst page."""
    found = {}
    for threads in figures["twoThreads"]:
        variant = threads["variant"]
        chunks = [row for row in figures["prefill"] if row["variant"] == variant]
        for name, pages, limit in (("784 and 816", ODD_PAGES, 2.0), ("768, 800 and 896", set(PAGES) - ODD_PAGES, 1.5)):
            worst = min(statistics.median(r["ratio"] for r in chunks if r["page"] == page) for page in pages)
            found[f"{variant}: vLLM's time / ours at pages {name}"] = Target(limit, worst, at_least=True)
        fractions = [row["peakFraction"] for row in chunks if row["peakFraction"] is not None]
        if fractions:
            found[f"{variant}: fraction of the measured peak"] = Target(
                0.75, statistics.median(fractions), at_least=True
            )
        slowest = max(max(row["factors"].values()) for row in figures["pages"] if row["variant"] == variant)
        found[f"{variant}: slowest page over fastest, less one"] = Target(0.03, slowest - 1)
        found[f"{variant}: two threads over one, of what the machine gave"] = Target(
            0.9, threads["paceline"] / threads["machine"], at_least=True
        )
    return found
