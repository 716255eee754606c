"""The report's text against a golden file, and what the plot draws."""

import os
from pathlib import Path

import pytest
from bench_records import CLOCK, ENGINE, block, plan

from paceline.bench.conclude import conclude
from paceline.bench.plot import block_rates, rate_figure, save_plot
from paceline.bench.records import (
    BlockRecord,
    ChunkTimeline,
    ClientLag,
    ExperimentResult,
    RequestRecord,
    RequestState,
    Role,
)
from paceline.bench.report import Table, arms_table, comparison_table, text_report, text_table

GOLDEN = Path(__file__).parent / "golden" / "report.txt"

BLOCKS = [
    block("off", 0, during=2.0, ttft=10.0),
    block("off", 1, during=2.5, ttft=10.5),
    block("n4", 0, during=8.0, ttft=11.0),
    block("n4", 1, during=7.5, ttft=12.0),
    block("off-control", 0, during=2.02, ttft=10.1),
    block("off-control", 1, during=2.48, ttft=10.4, lag=ClientLag(max_loop_lag_seconds=0.3), completed_requests=2),
]


def result(blocks: list[BlockRecord]) -> ExperimentResult:
    return conclude(plan(control_arm=True), ENGINE, CLOCK, blocks, [])


def test_the_whole_report() -> None:
    text = text_report(plan(control_arm=True), result(BLOCKS))
    if os.environ.get("PACELINE_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_rows_say_median_and_interval() -> None:
    table = arms_table(plan(control_arm=True), result(BLOCKS))
    assert table.rows[0][:4] == ("off", "50.0 [50.0, 50.0]", "2.2 [2.0, 2.5]", "0.50 [0.50, 0.50]")
    assert table.rows[2][0] == "off-control *"


def test_what_was_found_is_said_in_words_where_it_counts() -> None:
    sentence = (
        "in words: a resident gets 7.8 tok/s with n4 while the prompt loads, against 2.2 with off; the newcomer's "
        "first token comes after 11.5 s, against 10.2 s"
    )
    assert comparison_table(result(BLOCKS)).notes == (sentence,)
    assert comparison_table(result(BLOCKS[:2])).notes == ()  # n4 ran no block


def test_an_arm_without_blocks_shows_that_it_has_none() -> None:
    table = arms_table(plan(control_arm=True), result(BLOCKS[:2]))
    assert table.rows[1] == ("n4 *", "-", "-", "-", "-", "-")


def test_numbers_stand_to_the_right_and_long_words_wrap() -> None:
    rows = (("x", "1.5", "one two three " * 6), ("longer", "10", ""))
    table = Table("T", ("a", "n\nunit", "words"), rows, ("a note",))
    assert text_table(table, width=60).splitlines() == [
        "T",
        "",
        "           n",
        "a       unit  words",
        "------  ----  ----------------------------------------------",
        "x        1.5  one two three one two three one two three one",
        "              two three one two three one two three",
        "longer    10",
        "",
        "a note",
    ]


def resident(index: int, gap: float) -> RequestRecord:
    """A resident of block 0 of `off` with a chunk every `gap` seconds from 1 to 15 s."""
    times = tuple(1 + gap * number for number in range(int(14 / gap) + 1))
    return RequestRecord(
        request_id=f"r{index}",
        role=Role.RESIDENT,
        index=index,
        arm="off",
        block=0,
        state=RequestState.ENDED_BY_PLAN,
        prompt_tokens=1,
        max_tokens=99,
        intended_seconds=0.0,
        finished_seconds=15.0,
        chunks=ChunkTimeline(received_seconds=times, received_wall_seconds=times, tokens=(1,) * len(times)),
    )


def test_the_line_is_the_mean_of_the_residents() -> None:
    edges, rates = block_rates(BLOCKS[0], [resident(0, 0.5), resident(1, 0.25)])
    assert edges[0] == -3.0  # the window before opens three seconds ahead of the injection
    assert edges[-1] >= 10.5  # and the line goes on past the first token
    assert all(abs(rate - 3.0) < 1e-9 for rate in rates[:-1])  # 2 and 4 tokens a second


def test_one_panel_an_arm_on_common_axes(tmp_path: Path) -> None:
    figure = rate_figure(plan(), BLOCKS[:4], [resident(0, 0.5)])  # three of the blocks have no resident's record
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["off", "n4"]
    assert figure.axes[0].get_title(loc="right") == "prefill 10.2 s, meanwhile 2.2 tok/s"
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    for name in ("rates.png", "rates.SVG"):
        save_plot(figure, tmp_path / name)
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "rates.SVG").read_bytes()


def test_a_plot_needs_a_known_ending(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give it one of the endings \.png, \.svg, \.pdf"):
        save_plot(rate_figure(plan(), BLOCKS[:1], [resident(0, 0.5)]), tmp_path / "rates.bmp")


def test_a_run_without_a_first_token_has_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        rate_figure(plan(), [block("off", 0, first_token_seconds=None)], [])
