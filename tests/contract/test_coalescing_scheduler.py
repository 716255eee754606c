"""Coalescing on vLLM's real scheduler and cache managers: which spans run in one pass."""

from itertools import pairwise

import pytest
from hybrid import OFF, ON, Engine, Options, prompt

from paceline.engine_ext import compat
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk, PacingMode, PacingSettings

SOURCE = Options(block=512, budget=8192)
SMALL = Options(block=64, budget=1024)


@pytest.mark.parametrize(
    ("length", "stock", "coalesced"),
    [
        (16228, [8192, 7680, 356], [8192, 8036]),
        (16383, [8192, 7680, 511], [8192, 8191]),
        (32319, [8192, 8192, 8192, 7680, 63], [8192, 8192, 8192, 7743]),
        (6244, [6144, 100], [6244]),
        (16385, [8192, 8192, 1], [8192, 8192, 1]),
        (8192, [7680, 512], [8192]),
        (16384, [8192, 7680, 512], [8192, 8192]),
        (300, [300], [300]),
    ],
)
def test_the_worked_prompts_run_in_one_pass_a_span(length, stock, coalesced):
    for coalescing, expected in ((OFF, stock), (ON, coalesced)):
        engine = Engine(coalescing, SOURCE)
        engine.add("a", prompt(length))
        engine.run()
        assert engine.lengths("a") == expected
        assert engine.leaked_blocks == 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("shared", "hit"), [(16228, 15872), (15871, 15360), (15359, 14336), (14335, 12288), (12287, 0)]
)
def test_a_later_prompt_hits_each_retained_state_at_exactly_its_position(shared, hit, asynchronous):
    engine = Engine(ON, Options(block=512, budget=8192, asynchronous=asynchronous))
    engine.add("a", prompt(16228))
    engine.run()
    engine.add("b", prompt(16228)[:shared] + prompt(500, seed=3))
    engine.run()
    assert engine.hits["b"] == hit
    assert engine.leaked_blocks == 0


@pytest.mark.parametrize(("shared", "hit"), [(9216, 9216), (9215, 8192), (8192, 8192), (8191, 6144), (6143, 0)])
def test_a_retained_state_at_the_end_of_a_chunk_is_kept_as_well(shared, hit):
    engine = Engine(ON, SOURCE)
    engine.add("a", prompt(10240))
    engine.run()
    assert engine.lengths("a") == [8192, 2048]
    engine.add("b", prompt(10240)[:shared] + prompt(500, seed=3))
    engine.run()
    assert engine.hits["b"] == hit


def test_the_plan_travels_with_its_step_and_no_other():
    engine = Engine(ON, SOURCE)
    engine.add("a", prompt(16228))
    engine.run()
    first, second = engine.plans
    assert first is None
    assert second.targets == (12288, 14336, 15360, 15872)
    assert (second.start, second.end) == (8192, 16228)
    assert engine.report["plannedSpans"] == 1
    assert engine.report["plannedTokens"] == 8036
    assert engine.report["exportedStates"] == 4
    assert engine.report["notPlanned"] == {"NothingToExport": 1}


def test_a_span_longer_than_the_limit_is_split_as_usual():
    engine = Engine(CoalescingSettings(final_chunk=FinalChunk.ENABLED, max_span_tokens=512), SMALL)
    engine.add("a", prompt(1000))
    engine.run()
    assert engine.lengths("a") == [960, 40]
    assert engine.report["notPlanned"]["SpanTooLong"] == 1


def test_decoders_share_the_step_of_a_planned_span():
    engine = Engine(ON, SMALL)
    for name in ("d1", "d2", "d3"):
        engine.add(name, prompt(20, seed=int(name[1])), max_tokens=30)
    engine.step()
    engine.add("a", prompt(1000, seed=9))
    spans = engine.step()
    assert [(s.request_id, s.end - s.start) for s in spans] == [("d1", 1), ("d2", 1), ("d3", 1), ("a", 1000)]
    engine.run()
    assert engine.leaked_blocks == 0


def test_decode_tokens_that_push_the_span_off_its_end_leave_the_last_tokens_to_the_next_pass():
    engine = Engine(ON, SMALL)
    engine.add("d", prompt(20, seed=1), max_tokens=30)
    engine.step()
    engine.add("a", prompt(1024, seed=9))
    engine.run()
    assert engine.lengths("a") == [960, 64]  # 1023 tokens of budget beside the decoder: the span ends on the grid


def test_the_switch_takes_effect_between_two_steps():
    engine = Engine(OFF, SOURCE)
    engine.add("a", prompt(16228))
    engine.step()
    engine.set(coalescing=ON)
    engine.run()
    assert engine.lengths("a") == [8192, 8036]
    engine.add("b", prompt(16228, seed=5))
    engine.step()
    engine.set(coalescing=OFF)
    engine.run()
    assert engine.lengths("b") == [8192, 7680, 356]
    assert engine.leaked_blocks == 0


def test_a_paced_engine_releases_a_planned_span_as_one_chunk():
    engine = Engine(ON, SOURCE)
    engine.set(pacing=PacingSettings(mode=PacingMode.FIXED, interval=4))
    engine.add("d", prompt(100, seed=1), max_tokens=60)
    engine.step()
    engine.add("a", prompt(16000, seed=9))
    for _ in range(12):
        engine.step()
    prefill_steps = [
        (number, span.end - span.start)
        for number, spans in enumerate(engine.spans)
        for span in spans
        if span.request_id == "a"
    ]
    # The first mixed step may come at once, the next four steps later; it takes all that is left: 16000 - 7680 tokens
    # would exceed the budget beside the decoder, so the span ends on the grid and the rest follows four steps later.
    assert [length for _, length in prefill_steps] == [7680, 7680, 640]
    numbers = [number for number, _ in prefill_steps]
    assert [b - a for a, b in pairwise(numbers)] == [4, 4]


def test_a_paced_span_that_fits_takes_one_release():
    engine = Engine(ON, SOURCE)
    engine.set(pacing=PacingSettings(mode=PacingMode.FIXED, interval=4))
    engine.add("d", prompt(100, seed=1), max_tokens=60)
    engine.step()
    engine.add("a", prompt(15000, seed=9))
    for _ in range(12):
        engine.step()
    assert engine.lengths("a") == [7680, 7320]
    engine.set(coalescing=OFF)
    engine.add("b", prompt(15000, seed=4))
    for _ in range(20):
        engine.step()
    assert engine.lengths("b") == [7680, 7168, 152]


def test_an_untested_engine_is_refused_with_the_reason():
    hook = next(hook for hook in compat.HOOKS if hook.feature == "coalescing")
    assert compat.check(hook) is None
    assert "differs from those tested" in compat.check(
        compat.Hook(hook.feature, hook.target, hook.why, {"0": ("0.1",)})
    )


def test_every_source_that_coalescing_leans_on_was_tested():
    assert compat.problems("coalescing") == ()
    # After the patches too: what was replaced still leads to the source it replaced.
    hooks = [hook for hook in compat.HOOKS if hook.feature == "coalescing"]
    assert [hook.target for hook in hooks if compat.check(hook) is not None] == []


@pytest.mark.parametrize(
    ("options", "reason", "obstacle"),
    [
        (Options(drafts=3), "SpeculativeDecoding", "speculative decoding is on"),
        (Options(retention=None), "UnsupportedEngine", "prefix_cache_retention_interval"),
        (Options(block=784, budget=1024), "UnsupportedEngine", "784 tokens are no multiple of 64"),
    ],
)
def test_an_engine_that_can_not_be_coalesced_schedules_as_stock_and_says_why(options, reason, obstacle):
    passes = {}
    for coalescing in (OFF, ON):
        engine = Engine(coalescing, options)
        engine.add("a", prompt(1700))
        engine.run()
        passes[coalescing.final_chunk] = engine.lengths("a")
        assert engine.leaked_blocks == 0
    assert len({tuple(lengths) for lengths in passes.values()}) == 1
    assert engine.report["plannedSpans"] == 0
    assert list(engine.report["notPlanned"]) == [reason]
    assert any(obstacle in told for told in engine.scheduler.coalescing_report()["obstacles"])
    assert not engine.scheduler.coalescing_report()["active"]


def test_a_budget_below_a_block_is_split_as_usual():
    for coalescing in (OFF, ON):
        engine = Engine(coalescing, Options(block=512, budget=256))
        engine.add("a", prompt(2000))
        engine.run()
        assert engine.lengths("a") == [256] * 7 + [208]
        assert engine.leaked_blocks == 0
    assert engine.report["notPlanned"] == {"UnalignedEnd": 4, "UnalignedStart": 4}


def test_plans_lie_on_the_blocks_of_the_caches_where_vllm_sets_another_block_size_afterwards():
    engine = Engine(ON, Options(block=256, budget=512))
    engine.scheduler.cache_config.block_size = 128  # as vLLM does on a CPU without --block-size
    engine.add("a", prompt(500))
    engine.run()
    assert engine.lengths("a") == [500]
    engine.add("b", prompt(500)[:384] + prompt(300, seed=3))
    engine.run()
    assert engine.hits["b"] == 256
    assert engine.lengths("b") == [428]
    assert engine.leaked_blocks == 0


def test_a_preempted_prompt_is_split_as_usual():
    engine = Engine(ON, Options(blocks=40, budget=2048))
    engine.add("d", prompt(600, seed=1), max_tokens=600)
    engine.step()
    engine.add("a", prompt(1000, seed=2), max_tokens=300)
    engine.run()
    assert engine.report["notPlanned"].get("Preempted", 0) >= 1
    assert engine.leaked_blocks == 0


def test_a_prompt_that_hits_part_of_itself_is_coalesced_from_there():
    engine = Engine(ON, SMALL)
    engine.add("a", prompt(640))
    engine.run()
    engine.add("b", prompt(576) + prompt(700, seed=3))
    engine.run()
    assert engine.hits["b"] == 576
    assert engine.lengths("b") == [700]
    assert engine.leaked_blocks == 0
