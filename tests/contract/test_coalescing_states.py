"""Coalescing on a real engine: the same outputs, the same states layer by layer, and a wrong state never passes."""

import pytest
import torch
from hybrid import OFF, ON, prompt
from live_engine import BUDGET, Answer, LiveEngine, States
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.v1.request import RequestStatus

from paceline.engine_ext.coalescing.worker import UnwrittenStateError

PROMPT = prompt(3500)
RETAINED = (3072, 3328)
"""What a prompt of 3500 keeps inside its last span: 13 blocks of 256 and the one before, 3 blocks of 1024."""
LOGPROB_TOLERANCE = 1e-3
"""Largest difference of a token's logprob: the arithmetic's order differs in the attention layer only."""
STATE_TOLERANCE = 1e-4
"""Largest difference of a state, as a share of its largest element; 0 where spans are cut at multiples of 64."""


@pytest.fixture(scope="module")
def engine() -> LiveEngine:
    return LiveEngine()


@pytest.fixture(autouse=True)
def cold(engine: LiveEngine) -> None:
    engine.forget()


def assert_same_answer(answer: Answer, expected: Answer) -> None:
    assert answer.tokens == expected.tokens
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=LOGPROB_TOLERANCE)


def assert_same_states(states: States, expected: States) -> dict[str, list[float]]:
    """Return the largest absolute difference of each layer's convolution and recurrent state."""
    assert states.keys() == expected.keys()
    errors: dict[str, list[float]] = {}
    for layer, pair in states.items():
        errors[layer] = []
        for state, reference in zip(pair, expected[layer], strict=True):
            error = float((state.float() - reference.float()).abs().max())
            assert error <= STATE_TOLERANCE * float(reference.float().abs().max()), f"{layer}: {error:.1e}"
            errors[layer].append(error)
    return errors


def split_states(engine: LiveEngine, position: int) -> States:
    """Return the states that stock vLLM leaves where it ends a chunk: one token more makes it end there."""
    engine.forget()
    engine.set(OFF)
    assert sum(engine.ask(PROMPT[: position + 1])[0].passes) == position
    return engine.states(PROMPT, position)


def test_outputs_equal_those_of_the_split_run_in_fewer_passes(engine: LiveEngine) -> None:
    engine.set(OFF)
    split = engine.ask(PROMPT)[0]
    engine.forget()
    engine.set(ON)
    coalesced = engine.ask(PROMPT)[0]
    assert split.passes == [2048, 1280, 172]
    assert coalesced.passes == [2048, 1452]
    assert coalesced.hit == 0
    assert_same_answer(coalesced, split)


@pytest.mark.parametrize(
    ("shared", "hit"), [(3328, 3328), (3327, 3072), (3072, 3072), (3071, 2048), (2048, 2048), (2047, 0)]
)
def test_a_later_prompt_hits_a_retained_state_and_answers_as_from_cold(engine, shared, hit) -> None:
    later = PROMPT[:shared] + prompt(4, seed=3)
    engine.set(OFF)
    from_cold = engine.ask(later)[0]
    engine.forget()
    engine.set(ON)
    engine.ask(PROMPT)
    warm = engine.ask(later)[0]
    assert warm.hit == hit
    assert_same_answer(warm, from_cold)


@pytest.mark.parametrize("position", RETAINED)
def test_exported_states_equal_those_of_the_split_run_layer_by_layer(engine, position, capsys) -> None:
    engine.set(ON)
    engine.ask(PROMPT)
    exported = engine.states(PROMPT, position)
    assert len(exported) == 3
    errors = assert_same_states(exported, split_states(engine, position))
    with capsys.disabled():
        print(f"\nstates at {position}, largest absolute error of (convolution, recurrence) by layer: {errors}")


@pytest.mark.parametrize("which", [0, 1], ids=["convolution", "recurrence"])
def test_a_corrupted_state_fails_both_comparisons(engine: LiveEngine, which: int) -> None:
    later = PROMPT[:3072] + prompt(4, seed=3)  # short: this model forgets within a few dozen tokens
    engine.set(OFF)
    from_cold = engine.ask(later)[0]
    reference = split_states(engine, 3072)
    engine.forget()
    engine.set(ON)
    engine.ask(PROMPT)
    for layer, slot in engine.slots(PROMPT, 3072).items():
        state = engine.layers[layer].kv_cache[which]
        state[slot] = torch.roll(state[slot], 1, dims=-1)
    with pytest.raises(AssertionError):
        assert_same_states(engine.states(PROMPT, 3072), reference)
    warm = engine.ask(later)[0]
    assert warm.hit == 3072
    with pytest.raises(AssertionError):
        assert_same_answer(warm, from_cold)


def test_beside_decoders_outputs_equal_the_split_run(engine: LiveEngine) -> None:
    residents = [prompt(40 + 10 * number, seed=20 + number) for number in range(3)]
    answers = {}
    for coalescing in (OFF, ON):
        engine.forget()
        engine.set(coalescing)
        spans = engine.scheduler.coalescing_counters.spans
        answers[coalescing.final_chunk] = engine.ask(*residents, PROMPT, max_tokens=12)
        planned = engine.scheduler.coalescing_counters.spans - spans
        assert planned == (1 if coalescing == ON else 0)
    for split, coalesced in zip(*answers.values(), strict=True):
        assert_same_answer(coalesced, split)


def test_a_state_that_was_not_written_ends_the_step(engine: LiveEngine) -> None:
    wrapped = gdn_attention._cpu_gdn_attention_nonspec
    engine.set(ON)
    gdn_attention._cpu_gdn_attention_nonspec = wrapped.__wrapped__  # a layer that knows nothing of the plan
    try:
        with pytest.raises(UnwrittenStateError, match=r"states at \(3072, 3328\) of .* not written: model.layers.0"):
            engine.ask(PROMPT)
    finally:
        gdn_attention._cpu_gdn_attention_nonspec = wrapped
    engine.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)


def test_the_budget_is_what_the_spans_above_assume(engine: LiveEngine) -> None:
    assert engine.scheduler.max_num_scheduled_tokens == BUDGET
    assert engine.scheduler.coalescing_obstacles == ()
