"""The table that `paceline recommend` prints, for a frontier whose figures are given."""

from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.recommend import Point, Recommendation
from paceline.bench.report import text_table
from paceline.cli.commands.recommend import conclusion, frontier_table

PLAN = ExperimentPlan(name="demo", arms=(Arm(name="off"),), workload=MixedPhase(injected_prompt_tokens=16_384))
FRONTIER = (
    Point("off", 1, None, None, 4.2, 21.3),
    Point("n=4", 4, 11.2, 31.9, 11.1, 32.0),
    Point("n=5", 5, 12.6, 35.4),
    Point("slo=80ms", None, None, None, 12.5, 36.0),
)


def test_the_recommended_row_is_marked_and_explained() -> None:
    found = Recommendation(5, 5, 0.009, "the formula", FRONTIER)
    table = frontier_table("0192f3c4a5b6", PLAN, found, 80)
    assert table.title == "experiment 0192f3c4a5b6: demo, 2 residents, then a cold prompt of 16,384 tokens"
    assert table.rows == (
        ("  off", "-", "4.2", "-", "-", "21.30", "-"),
        ("  n=4", "11.2", "11.1", "+0.9%", "31.90", "32.00", "-0.3%"),
        ("> n=5", "12.6", "-", "-", "35.40", "-", "-"),
        ("  slo=80ms", "-", "12.5", "-", "-", "36.00", "-"),
    )
    assert table.notes == (
        "for 80 ms a token: N = 5; the formula",
        "expected under N = 5: 12.6 tok/s, 79 ms a token for each resident, and a wait of 35.4 s instead of 21.3 s for "
        "the prompt",
        "margin: the formula was 0.9% too hopeful at worst; without it N = 5",
    )
    assert "> n=5" in text_table(table)


def test_no_interval_is_said_as_such() -> None:
    table = frontier_table("0192f3c4a5b6", PLAN, Recommendation(None, None, 0.158, "too slow", FRONTIER), 30)
    assert table.notes == ("for 30 ms a token: no interval; too slow",)
    assert not any(row[0].startswith(">") for row in table.rows)


def test_a_long_wait_needs_a_deadline_beside_the_promise() -> None:
    assert "`paceline pace NAME --slo 80ms`, which" in conclusion(5, 80, wait=21.3)
    assert "`paceline pace NAME --slo 80ms --max-prefill-delay 71s`, which" in conclusion(5, 80, wait=35.4)
    assert "`paceline pace NAME --slo 80ms --max-prefill-delay 3600s`, which" in conclusion(5, 80, wait=4_000.0)
    assert "`paceline pace NAME --slo 80ms`, which" in conclusion(5, 80)
