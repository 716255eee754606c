from paceline.bench.records import Metric
from paceline.bench.report import text_table
from paceline.bench.simulator.exchange import SimulatedFigures, SimulationResult
from paceline.bench.simulator.hardware import load_hardware
from paceline.bench.simulator.tables import comparison_table, figures_table

FIGURES = SimulatedFigures(
    arm="n=4",
    metrics={
        Metric.RESIDENT_RATE_BEFORE: 25.4,
        Metric.RESIDENT_RATE_DURING: 11.0,
        Metric.TIME_TO_FIRST_TOKEN: 31.38,
        Metric.ADMISSION_TO_FIRST_TOKEN: 31.38,
    },
    mixed_steps=21,
    decode_steps=60,
    virtual_seconds=1.0,
)
RESULT = SimulationResult(engine_version="0.32.0", figures=(FIGURES,))


def test_every_part_of_a_table_says_that_it_is_simulated() -> None:
    model = load_hardware("v100x2")
    table = figures_table(model, model.workload, RESULT)
    assert table.title.startswith("simulated on v100x2: 1 resident after 240,000 tokens")
    assert all("simulated" in heading for heading in table.headings[1:])
    assert all("simulated" in note for note in table.notes)
    assert table.rows == (("n=4", "25.4", "11.0", "-", "31.38", "31.38", "21"),)
    assert "simulated" in text_table(table)


def test_error_against_a_measured_arm() -> None:
    measured = {"n=4": {Metric.RESIDENT_RATE_DURING: 10.0, Metric.TIME_TO_FIRST_TOKEN: 0.0}}
    table = comparison_table(RESULT, measured)
    assert table.rows == (("n=4", "residentTokensPerSecondDuring", "11.00", "10.00", "+10.0%"),)
    assert table.title.startswith("simulated")


def test_answers_carry_the_mark() -> None:
    assert RESULT.model_dump(by_alias=True)["simulated"] is True
