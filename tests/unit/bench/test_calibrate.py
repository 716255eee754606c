"""Calibration from records whose step times follow a known law, which must come back."""

import pytest
from bench_records import ENGINE, block, plan

from paceline.bench.records import BlockRecord, Metric, PrefillSteps
from paceline.bench.simulator.calibrate import Stored, calibrate
from paceline.bench.simulator.hardware import HardwareError

DECODE, TOKEN, PAIR, CHUNK = 0.020, 200e-6, 5e-9, 1_000


def measured(prompt: int, *, arm: str = "n4", others: bool = True, rate: float = 50.0) -> BlockRecord:
    """A block on an engine with 20 ms a decode step, 0.2 ms a token and 5 ns a pair, in chunks of 1,000 tokens."""
    chunks = prompt // CHUNK
    steps = PrefillSteps(
        complete=True,
        chunks=chunks,
        tokens=prompt,
        steps=chunks * 4 - 3 if others else chunks,
        mean_chunk_step_seconds=DECODE + TOKEN * CHUNK + PAIR * prompt * prompt / 2 / chunks,
        mean_other_step_seconds=DECODE if others else None,
    )
    metrics = {
        Metric.RESIDENT_RATE_BEFORE: rate,
        Metric.TIME_TO_FIRST_TOKEN: 10.0,
        Metric.ADMISSION_TO_FIRST_TOKEN: 9.75,
    }
    return block(arm, injected_prompt_tokens=prompt, prefill_steps=steps, metrics=metrics)


def test_two_lengths_tell_tokens_and_attention_apart() -> None:
    stored = [Stored(plan(), ENGINE, [measured(length)]) for length in (4_000, 40_000)]
    found = calibrate("mine", stored)
    assert found.step_time.base_milliseconds == pytest.approx(20)
    assert found.step_time.per_prefill_token_microseconds == pytest.approx(200)
    assert found.step_time.per_prefill_pair_nanoseconds == pytest.approx(5)
    assert "several lengths" in found.source


def test_one_length_puts_everything_into_the_token_and_says_so() -> None:
    found = calibrate("mine", [Stored(plan(), ENGINE, [measured(4_000)])])
    # 0.2 ms a token, and 2,000 pairs before each on average at 5 ns.
    assert found.step_time.per_prefill_token_microseconds == pytest.approx(210)
    assert found.step_time.per_prefill_pair_nanoseconds == 0
    assert "one prompt length" in found.source


def test_drafts_explain_a_rate_above_that_of_the_steps() -> None:
    found = calibrate("mine", [Stored(plan(), ENGINE, [measured(4_000, rate=150.0)], draft_tokens=4)])
    assert found.tokens_per_step == pytest.approx(3.0)
    assert found.draft_tokens == 4
    assert found.step_time.base_milliseconds == pytest.approx(20)


def test_without_drafts_a_step_yields_one_token_and_steps_beside_the_prefill_count() -> None:
    found = calibrate("mine", [Stored(plan(), ENGINE, [measured(4_000, rate=60.0)])])
    assert (found.tokens_per_step, found.draft_tokens) == (1.0, 0)
    assert found.step_time.base_milliseconds == pytest.approx(20)
    assert found.step_time.per_prefill_token_microseconds == pytest.approx(210)


def test_time_between_steps_counts_for_every_step() -> None:
    found = calibrate("mine", [Stored(plan(), ENGINE, [measured(4_000, rate=40.0)])])
    # The client saw 25 ms a token where the engine told 20 ms a step: 5 ms more, for chunks too.
    assert found.tokens_per_step == 1
    assert found.step_time.base_milliseconds == pytest.approx(25)
    assert found.step_time.per_prefill_token_microseconds == pytest.approx(210)


def test_without_a_paced_arm_the_rate_tells_the_decode_step() -> None:
    found = calibrate("mine", [Stored(plan(), ENGINE, [measured(4_000, others=False, arm="off")])])
    assert found.step_time.base_milliseconds == pytest.approx(20)
    assert "no arm held a prefill" in found.source
    assert found.admission_seconds == pytest.approx(0.25)


def test_the_step_limit_is_the_engines_own_where_it_explains_the_chunks() -> None:
    told = ENGINE.model_copy(update={"max_num_batched_tokens": 1_002, "max_num_seqs": 8})
    assert calibrate("mine", [Stored(plan(), told, [measured(4_000)])]).max_num_batched_tokens == 1_002
    larger = ENGINE.model_copy(update={"max_num_batched_tokens": 2_048})
    # Chunks ended at 1,000 tokens although 2,048 were allowed: at block boundaries, say. Two residents decode beside.
    assert calibrate("mine", [Stored(plan(), larger, [measured(4_000)])]).max_num_batched_tokens == 1_002


def test_blocks_without_steps_calibrate_nothing() -> None:
    with pytest.raises(HardwareError, match="admin port"):
        calibrate("mine", [Stored(plan(), ENGINE, [block(), block(prefill_steps=None)])])
    with pytest.raises(HardwareError, match="admin port"):
        calibrate("mine", [Stored(plan(), ENGINE, [measured(4_000).model_copy(update={"problems": ("late",)})])])


def test_what_the_simulator_can_not_hold_is_told() -> None:
    with pytest.raises(
        HardwareError, match=r"no hardware model can be fitted: prompt_tokens: .* less than or equal to"
    ):
        calibrate("mine", [Stored(plan(), ENGINE, [measured(2_000_000)])])


def test_experiments_of_different_models_make_no_one_engine() -> None:
    other = ENGINE.model_copy(update={"model": "another"})
    with pytest.raises(HardwareError, match="different models: another, "):
        calibrate("mine", [Stored(plan(), ENGINE, [measured(4_000)]), Stored(plan(), other, [measured(40_000)])])
