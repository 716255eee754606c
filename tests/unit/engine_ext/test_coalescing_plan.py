"""The span planner against the source's worked cases, and against what must hold for every prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine_ext.coalescing.plan import (
    MAX_TARGETS,
    Columns,
    Grids,
    Refusal,
    SpanLimits,
    SpanPlan,
    plan_span,
)

B = 512
DCP4_DROP = Grids(B, 4 * B, keeps_previous=True)
DCP4 = Grids(B, 4 * B, keeps_previous=False)
DCP1_DROP = Grids(B, B, keeps_previous=True)
DCP1 = Grids(B, B, keeps_previous=False)
LIMITS = SpanLimits(max_tokens=8192, cut_tokens=64)


def prefill_spans(prompt_tokens, budget_tokens, grids, limits, *, off_grid=True):
    """Yield the (start, end) of each pass over a cold, lone prompt.

    Without `off_grid`, a last span that ends off the fine grid climbs the ladder instead: one pass for each retained
    position, which is what the source did before its change.
    """
    start = 0
    while start < prompt_tokens:
        end = min(start + budget_tokens, prompt_tokens)
        aligned_end = end // grids.fine_tokens * grids.fine_tokens
        if end < prompt_tokens and aligned_end > start:
            end = aligned_end
        plan = plan_span("", start, end, prompt_tokens, grids, limits)
        if isinstance(plan, Refusal) or (end % grids.fine_tokens and not off_grid):
            end = next((stop for stop in grids.retained(prompt_tokens) if start < stop < end), end)
        yield start, end
        start = end


def lengths(prompt, grids=DCP4_DROP, **how):
    return [end - start for start, end in prefill_spans(prompt, 8192, grids, LIMITS, **how)]


@pytest.mark.parametrize(
    ("prompt", "ladder", "coalesced"),
    [
        (16228, [8192, 4096, 2048, 1024, 512, 356], [8192, 8036]),
        (16383, [8192, 4096, 2048, 1024, 512, 511], [8192, 8191]),
        (32319, [8192, 8192, 8192, 4096, 2048, 1024, 512, 63], [8192, 8192, 8192, 7743]),
        (6244, [4096, 1536, 512, 100], [6244]),
        (8192, [8192], [8192]),
        (16384, [8192, 8192], [8192, 8192]),
        (32768, [8192, 8192, 8192, 8192], [8192, 8192, 8192, 8192]),
        (16385, [8192, 8192, 1], [8192, 8192, 1]),
    ],
)
def test_the_passes_of_the_worked_prompts(prompt, ladder, coalesced):
    assert lengths(prompt, off_grid=False) == ladder
    assert lengths(prompt) == coalesced


@pytest.mark.parametrize(
    ("prompt", "start", "grids", "targets", "columns"),
    [
        (16228, 8192, DCP4_DROP, (12288, 14336, 15360, 15872), Columns(15, (23, 27, 29, 30), 31)),
        (16383, 8192, DCP4_DROP, (12288, 14336, 15360, 15872), Columns(15, (23, 27, 29, 30), 31)),
        (32319, 24576, DCP4_DROP, (28672, 30720, 31744, 32256), Columns(47, (55, 59, 61, 62), 63)),
        (6244, 0, DCP4_DROP, (4096, 5632, 6144), Columns(-1, (7, 10, 11), 12)),
        (8192, 0, DCP4_DROP, (4096, 6144, 7168, 7680), Columns(-1, (7, 11, 13, 14), 15)),
        (16384, 8192, DCP4_DROP, (12288, 14336, 15360, 15872), Columns(15, (23, 27, 29, 30), 31)),
        (32768, 24576, DCP4_DROP, (28672, 30720, 31744, 32256), Columns(47, (55, 59, 61, 62), 63)),
        (16228, 8192, DCP4, (14336, 15872), Columns(15, (27, 30), 31)),
        (16228, 8192, DCP1_DROP, (15360, 15872), Columns(15, (29, 30), 31)),
        (16228, 8192, DCP1, (15872,), Columns(15, (30,), 31)),
        (32319, 24576, DCP4, (30720, 32256), Columns(47, (59, 62), 63)),
        (6244, 0, DCP1_DROP, (5632, 6144), Columns(-1, (10, 11), 12)),
        (6244, 0, DCP1, (6144,), Columns(-1, (11,), 12)),
    ],
)
def test_targets_and_columns_of_the_last_span(prompt, start, grids, targets, columns):
    plan = plan_span("a", start, prompt, prompt, grids, LIMITS)
    assert plan == SpanPlan("a", start, prompt, targets, spare=targets)
    assert plan.columns(B) == columns


def test_a_single_token_tail_has_nothing_to_export():
    assert plan_span("a", 16384, 16385, 16385, DCP4_DROP, LIMITS) is Refusal.NOTHING_TO_EXPORT


@pytest.mark.parametrize(
    ("start", "end", "prompt", "limits", "refusal"),
    [
        (100, 6244, 6244, LIMITS, Refusal.UNALIGNED_START),
        (0, 8193, 8193, LIMITS, Refusal.SPAN_TOO_LONG),
        (0, 6000, 6244, LIMITS, Refusal.UNALIGNED_END),
        (0, 512, 6244, LIMITS, Refusal.NOTHING_TO_EXPORT),
        (0, 6244, 6244, SpanLimits(8192, 1024), Refusal.UNALIGNED_CUT),
    ],
)
def test_refusals(start, end, prompt, limits, refusal):
    assert plan_span("a", start, end, prompt, DCP4_DROP, limits) is refusal


def test_a_page_that_is_no_multiple_of_the_kernel_chunk_is_refused():
    page = Grids(784, 784, keeps_previous=False)
    assert plan_span("a", 0, 1600, 1600, page, LIMITS) is Refusal.UNALIGNED_CUT


def test_a_pass_that_ends_at_a_retained_position_keeps_its_end():
    # 10240 tokens: the coarse grid keeps 8192 and 6144, the fine one 9728 and 9216.
    assert plan_span("a", 0, 8192, 10240, DCP4_DROP, LIMITS) == SpanPlan("a", 0, 8192, (6144,), (6144,), keeps_end=True)
    assert plan_span("a", 6144, 8192, 10240, DCP4_DROP, LIMITS) == SpanPlan("a", 6144, 8192, (), (), keeps_end=True)


def test_an_end_that_stock_keeps_anyway_needs_no_plan():
    assert plan_span("a", 0, 8192, 8193, DCP1, LIMITS, stops=(8192,)) is Refusal.NOTHING_TO_EXPORT


def test_a_junction_takes_the_place_of_the_coarsest_retained_state():
    plan = plan_span("a", 8192, 16228, 16228, DCP4_DROP, LIMITS, stops=(15872, 9216))
    assert plan.targets == (9216, 14336, 15360, 15872)
    assert plan.spare == (14336, 15360)
    assert plan.needed == 2


def test_spare_targets_are_given_up_from_the_lowest():
    plan = plan_span("a", 8192, 16228, 16228, DCP4_DROP, LIMITS, stops=(15872,))
    assert plan.with_spare(3) == plan
    assert plan.with_spare(1) == SpanPlan("a", 8192, 16228, (15360, 15872), (15360,))
    assert plan.with_spare(0) == SpanPlan("a", 8192, 16228, (15872,), ())


def test_stops_outside_the_span_are_not_exported():
    plan = plan_span("a", 8192, 16228, 16228, DCP1, LIMITS, stops=(8192, 16228, 4096))
    assert plan.targets == (15872,)


def test_more_stops_than_targets_is_refused():
    stops = (512, 1024, 1536, 2048, 2560)
    assert plan_span("a", 0, 6244, 6244, DCP4_DROP, LIMITS, stops=stops) is Refusal.TOO_MANY_STOPS


grids_strategy = st.builds(
    lambda fine, factor, previous: Grids(64 * fine, 64 * fine * factor, previous),
    st.integers(1, 12),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
)


@given(grids_strategy, st.integers(1, 40_000), st.integers(64, 16_384), st.booleans())
def test_passes_tile_the_prompt_within_the_budget(grids, prompt, budget, off_grid):
    position = 0
    for start, end in prefill_spans(prompt, budget, grids, SpanLimits(budget, 64), off_grid=off_grid):
        assert start == position < end <= start + budget
        position = end
    assert position == prompt


@given(grids_strategy, st.integers(1, 40_000), st.integers(64, 16_384))
def test_coalescing_never_needs_more_passes_than_the_ladder(grids, prompt, budget):
    limits = SpanLimits(budget, 64)
    coalesced = len(list(prefill_spans(prompt, budget, grids, limits)))
    assert coalesced <= len(list(prefill_spans(prompt, budget, grids, limits, off_grid=False)))


@given(
    grids_strategy,
    st.integers(0, 40),
    st.integers(1, 9_000),
    st.integers(0, 9_000),
    st.lists(st.integers(1, 100), max_size=3),
)
def test_a_plan_keeps_every_stop_and_never_aliases_columns(grids, start_blocks, span, more, stop_blocks):
    block = grids.fine_tokens
    start = start_blocks * block
    end, prompt = start + span, start + span + more
    stops = [blocks * block for blocks in stop_blocks]
    plan = plan_span("a", start, end, prompt, grids, SpanLimits(), stops)
    if isinstance(plan, Refusal):
        return
    assert len(plan.targets) <= MAX_TARGETS
    assert plan.targets or plan.keeps_end
    assert not plan.keeps_end or end in grids.retained(prompt)
    assert {stop for stop in stops if start < stop < end} <= set(plan.targets)
    assert set(plan.targets) <= set(stops) | set(grids.retained(prompt))
    columns = plan.columns(block)
    assert list(columns.targets) == sorted(set(columns.targets))
    assert all(columns.source < column < columns.final for column in columns.targets)
    assert all((column + 1) * block == target for column, target in zip(columns.targets, plan.targets, strict=True))
