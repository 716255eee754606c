"""An experiment as tables of plain text: rows for whoever draws them, and a drawing of our own."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from paceline.bench.plan import ExperimentPlan
from paceline.bench.records import AuditOutcome, Comparison, Estimate, ExperimentResult, Metric, Verdict

NOTHING: Final = "-"
FEW_BLOCKS: Final = 5

COLUMNS: Final[dict[Metric, tuple[str, int]]] = {
    Metric.RESIDENT_RATE_BEFORE: ("resident tok/s\nbefore", 1),
    Metric.RESIDENT_RATE_DURING: ("resident tok/s\nduring", 1),
    Metric.LONGEST_CHUNK_GAP_DURING: ("longest\nsilence (s)", 2),
    Metric.TIME_TO_FIRST_TOKEN: ("TTFT (s)", 2),
    Metric.ADMISSION_TO_FIRST_TOKEN: ("admission to\nfirst token (s)", 2),
}
"""The metrics that a table shows, with their headings (a line feed splits one over two lines) and decimals."""

VERDICT_WORDS: Final = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.NO_DIFFERENCE: "no difference",
    Verdict.INVALID: "does not count",
}


OUTCOME_WORDS: Final = {
    AuditOutcome.FAILED: "FAILED",
    AuditOutcome.NOT_APPLICABLE: "not seen",
    AuditOutcome.PASSED: "ok",
}

GAP: Final = "  "


@dataclass(frozen=True)
class Table:
    """A table: its title, its headings, rows of as many cells, and notes below it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def arms_table(plan: ExperimentPlan, result: ExperimentResult) -> Table:
    """Return one row an arm: medians over its blocks, each with its interval."""
    work = plan.workload.sized(result.arms[0].injected_prompt_tokens)
    rows = tuple(
        (
            arm.arm + ("" if arm.valid else " *"),
            *(_estimate(arm.metrics.get(metric), digits) for metric, (_, digits) in COLUMNS.items()),
        )
        for arm in result.arms
    )
    return Table(
        title=(
            f"{plan.name}: {work.describe()}, on {result.engine.model} "
            f"(vLLM {result.engine.version or 'of unknown version'})"
        ),
        headings=("arm", *(heading for heading, _ in COLUMNS.values())),
        rows=rows,
        notes=(
            _blocks_note(plan),
            *_control_note(plan),
            *(f"* {arm.arm} does not count: {reason}" for arm in result.arms for reason in arm.reasons),
        ),
    )


def comparison_table(result: ExperimentResult) -> Table:
    """Return one row for each arm and metric: the ratio to the baseline, and what may be said of it."""
    return Table(
        title="Against the baseline",
        headings=("arm", "metric", "ratio", "verdict"),
        rows=tuple(_comparison(comparison) for comparison in result.comparisons if comparison.metric in COLUMNS),
        notes=tuple(_in_words(result)),
    )


def audit_table(result: ExperimentResult) -> Table:
    """Return one row for each audit, failed ones first; arms of which an audit says the same share a row."""
    arms: dict[tuple[AuditOutcome, str, str], list[str]] = {}
    for audit in result.audits:
        arms.setdefault((audit.outcome, audit.name, audit.message), []).append(audit.arm or "all")
    order = list(OUTCOME_WORDS)
    rows = sorted(arms.items(), key=lambda row: order.index(row[0][0]))
    return Table(
        title="Audits",
        headings=("outcome", "audit", "arm", "what was seen"),
        rows=tuple((OUTCOME_WORDS[outcome], name, ", ".join(of), said) for (outcome, name, said), of in rows),
    )


def text_table(table: Table, width: int = 120) -> str:
    """Draw a table with spaces, numbers to the right, the last column wrapped to `width`; ends without a line feed."""
    headings = [heading.split("\n") for heading in table.headings]
    columns = list(zip(*table.rows, strict=True)) or [()] * len(headings)
    widths = [max(map(len, [*heading, *column])) for heading, column in zip(headings, columns, strict=True)]
    widths[-1] = min(widths[-1], max(40, width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)))
    numeric = [bool(column) and all(map(_looks_numeric, column)) for column in columns]

    def lines(cells: Sequence[Sequence[str]]) -> list[str]:
        return [
            GAP.join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
            for row in zip_longest(*cells, fillvalue="")
        ]

    deepest = max(map(len, headings))
    drawn = [
        *lines([[""] * (deepest - len(heading)) + heading for heading in headings]),
        *lines([["-" * width] for width in widths]),
        *(
            line
            for row in table.rows
            for line in lines([*([cell] for cell in row[:-1]), textwrap.wrap(row[-1], widths[-1]) or [""]])
        ),
    ]
    notes = [line for note in table.notes for line in textwrap.wrap(note, width)]
    return "\n".join([table.title, "", *drawn, *([""] if notes else []), *notes])


def text_report(plan: ExperimentPlan, result: ExperimentResult) -> str:
    """Return the whole report as text."""
    tables = [
        arms_table(plan, result),
        *([comparison_table(result)] if result.comparisons else []),
        audit_table(result),
    ]
    return "\n\n".join(text_table(table) for table in tables) + "\n"


def _estimate(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return NOTHING
    if estimate.blocks == 1:
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _comparison(comparison: Comparison) -> tuple[str, ...]:
    ratio = comparison.ratio
    shown = NOTHING if ratio is None else f"x{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    verdict = VERDICT_WORDS[comparison.verdict]
    metric = COLUMNS[comparison.metric][0].removesuffix(" (s)").replace("\n", " ")
    return comparison.arm, metric, shown, verdict


def _in_words(result: ExperimentResult) -> Iterator[str]:
    """Yield a sentence on each arm that may be compared with the baseline, which is the first."""
    medians = [
        (arm, {metric: estimate.value for metric, estimate in arm.metrics.items()})
        for arm in result.arms
        if arm.valid and Metric.RESIDENT_RATE_DURING in arm.metrics and Metric.TIME_TO_FIRST_TOKEN in arm.metrics
    ]
    if not medians or medians[0][0] is not result.arms[0]:
        return
    (baseline, before), *others = medians
    for arm, after in others:
        during, first = Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN
        yield (
            f"in words: a resident gets {after[during]:.1f} tok/s with {arm.arm} while the prompt loads, against "
            f"{before[during]:.1f} with {baseline.arm}; the newcomer's first token comes after {after[first]:.1f} s, "
            f"against {before[first]:.1f} s"
        )


def _blocks_note(plan: ExperimentPlan) -> str:
    note = (
        f"medians over {plan.blocks} blocks an arm, with {plan.confidence_percent:g}% bootstrap intervals in brackets"
    )
    return (
        f"{note}; with so few blocks an interval is little more than their range" if plan.blocks < FEW_BLOCKS else note
    )


def _control_note(plan: ExperimentPlan) -> tuple[str, ...]:
    control = plan.control
    return (f"{control.name} repeats {plan.baseline.name}: it must show no difference",) if control else ()


def _looks_numeric(cell: str) -> bool:
    return cell == NOTHING or cell.lstrip("x")[:1].isdigit()
