"""The residents' token rate over time, one panel an arm, with the prefill marked."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import BlockRecord, Metric, RequestRecord, Role
from paceline.bench.windows import tokens_until

PREFILL_COLOR: Final = "#f2b134"
RATE_COLOR: Final = "#1f5f8b"
TEXT_COLOR: Final = "#333333"
BINS: Final = 240
MIN_BIN_SECONDS: Final = 0.25
AFTER_SECONDS: Final = 0.5
FORMATS: Final = ("png", "svg", "pdf")


def rate_figure(plan: ExperimentPlan, blocks: Sequence[BlockRecord], requests: Sequence[RequestRecord]) -> Figure:
    """Draw the measured blocks of every arm on common axes. Raises ValueError where no block got its first token."""
    drawn = [
        b for b in blocks if not b.warm_up and b.first_token_seconds is not None and b.injected_seconds is not None
    ]
    arms = [arm.name for arm in plan.all_arms if any(block.arm == arm.name for block in drawn)]
    if not arms:
        raise ValueError("no block of this experiment reached the first token of its injected prompt: nothing to draw")
    figure = Figure(figsize=(9, 1.1 + 2.1 * len(arms)), layout="constrained", dpi=150)
    panels = figure.subplots(len(arms), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, arm in zip(panels, arms, strict=True):
        _draw_arm(axes, arm, [block for block in drawn if block.arm == arm], requests)
    panels[-1].set_xlabel("seconds since the prompt was sent", color=TEXT_COLOR)
    work = plan.workload.sized(drawn[0].injected_prompt_tokens)
    figure.suptitle(f"{plan.name}: {work.describe()}", color=TEXT_COLOR)
    figure.supylabel("tokens per second of one resident", color=TEXT_COLOR, fontsize="medium")
    return figure


def save_plot(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the path's suffix names. Raises ValueError for one that is not known."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise ValueError(f"can't draw {path.name}: give it one of the endings {', '.join('.' + f for f in FORMATS)}")
    figure.savefig(path, format=suffix)


def _draw_arm(axes: Axes, arm: str, blocks: Sequence[BlockRecord], requests: Sequence[RequestRecord]) -> None:
    waits = [block.metrics[Metric.TIME_TO_FIRST_TOKEN] for block in blocks]
    during = median(block.metrics[Metric.RESIDENT_RATE_DURING] for block in blocks)
    axes.axvspan(0, median(waits), color=PREFILL_COLOR, alpha=0.25, linewidth=0)
    for wait in waits:
        axes.axvline(wait, color=PREFILL_COLOR, linewidth=1.2)
    for times, rates in (block_rates(block, requests) for block in blocks):
        axes.stairs(rates, times, baseline=None, color=RATE_COLOR, linewidth=1.3, alpha=0.35 + 0.65 / len(blocks))
    axes.hlines(during, 0, median(waits), color=TEXT_COLOR, linestyle=(0, (4, 3)), linewidth=1)
    axes.set_title(arm, loc="left", fontsize="medium", fontweight="bold", color=TEXT_COLOR)
    axes.set_title(
        f"prefill {median(waits):.1f} s, meanwhile {during:.1f} tok/s", loc="right", fontsize="medium", color=TEXT_COLOR
    )
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=TEXT_COLOR)


def block_rates(
    block: BlockRecord, requests: Sequence[RequestRecord]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return bin edges, in seconds since the injection, and one resident's mean tokens per second in each bin.

    The bins run from the window before to just after the first token. Tokens are spread over the gap they ended.
    """
    steady, sent, first = block.steady_seconds, block.injected_seconds, block.first_token_seconds
    if steady is None or sent is None or first is None:
        raise ValueError("a block without an injection has no rates to draw")
    end = first + AFTER_SECONDS
    width = max(MIN_BIN_SECONDS, (end - steady) / BINS)
    edges = np.arange(steady, end + width, width)
    residents = [
        record
        for record in requests
        if (record.arm, record.block, record.warm_up, record.role)
        == (block.arm, block.block, block.warm_up, Role.RESIDENT)
    ]
    counts = [tokens_until(record.chunks, edges) for record in residents]
    rates = np.diff(np.mean(counts or [np.zeros_like(edges)], axis=0)) / width
    return edges - sent, rates
