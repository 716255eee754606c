"""Simulated figures as a table; its title and its columns say that they are simulated."""

from collections.abc import Mapping
from typing import Final

from paceline.bench.records import Metric
from paceline.bench.report import NOTHING, Table
from paceline.bench.simulator.exchange import SimulatedFigures, SimulationResult
from paceline.bench.simulator.hardware import Hardware, SimulatedWorkload

COLUMNS: Final[dict[Metric, tuple[str, int]]] = {
    Metric.RESIDENT_RATE_BEFORE: ("simulated\ntok/s before", 1),
    Metric.RESIDENT_RATE_DURING: ("simulated\ntok/s during", 1),
    Metric.LONGEST_CHUNK_GAP_DURING: ("simulated longest\nsilence (s)", 2),
    Metric.TIME_TO_FIRST_TOKEN: ("simulated\nTTFT (s)", 2),
    Metric.ADMISSION_TO_FIRST_TOKEN: ("simulated admission\nto first token (s)", 2),
}
COMPARED: Final = (Metric.RESIDENT_RATE_DURING, Metric.TIME_TO_FIRST_TOKEN)

Measured = Mapping[str, Mapping[Metric, float]]
"""Medians by arm and metric, as an experiment measured them."""


def figures_table(hardware: Hardware, work: SimulatedWorkload, result: SimulationResult) -> Table:
    """Return one row an arm. A rate is one resident's."""
    residents = f"{work.residents} resident{'s' if work.residents > 1 else ''} after {work.resident_context_tokens:,}"
    return Table(
        title=f"simulated on {hardware.name}: {residents} tokens, then a cold prompt of {work.prompt_tokens:,} tokens",
        headings=("arm", *(heading for heading, _ in COLUMNS.values()), "simulated\nmixed steps"),
        rows=tuple(_row(figures) for figures in result.figures),
        notes=(
            "simulated: vLLM's real scheduler in virtual time, step durations from a model; nothing here was measured",
            f"{hardware.name} (simulated): {hardware.description}. {hardware.source}",
        ),
    )


def comparison_table(result: SimulationResult, measured: Measured) -> Table:
    """Return one row for each arm that was measured, too: simulated, measured, and the simulation's error."""
    rows = [
        (
            figures.arm,
            metric.value,
            f"{figures.metrics[metric]:.2f}",
            f"{measured[figures.arm][metric]:.2f}",
            f"{100 * (figures.metrics[metric] / measured[figures.arm][metric] - 1):+.1f}%",
        )
        for figures in result.figures
        for metric in COMPARED
        if measured.get(figures.arm, {}).get(metric, 0) > 0
    ]
    return Table(
        title="simulated against what the experiment measured",
        headings=("arm", "metric", "simulated", "measured", "error of the simulated"),
        rows=tuple(rows),
        notes=("the simulated step times were fitted to the same experiment",),
    )


def _row(figures: SimulatedFigures) -> tuple[str, ...]:
    cells = (
        f"{figures.metrics[metric]:.{digits}f}" if metric in figures.metrics else NOTHING
        for metric, (_, digits) in COLUMNS.items()
    )
    return figures.arm, *cells, str(figures.mixed_steps)
