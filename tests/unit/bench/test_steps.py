from paceline.bench.records import PrefillSteps
from paceline.bench.steps import EngineStep, prefill_steps

ID = "run-1-3-injected-0"
VLLM_ID = f"cmpl-{ID}-0-5f2b"


def step(number: int, tokens: int, seconds: float = 0.5, engine: int = 0) -> EngineStep:
    scheduled = {"cmpl-run-1-3-resident-0-0": 1} | ({VLLM_ID: tokens} if tokens else {})
    return EngineStep(engine=engine, step=number, duration_seconds=seconds, scheduled=scheduled)


def test_chunks_are_told_from_the_steps_between_and_the_decoding_after() -> None:
    steps = [
        step(7, 0, 0.02),
        step(8, 512, 0.4),
        step(9, 0, 0.02),
        step(10, 0, 0.04),
        step(11, 488, 0.6),
        step(12, 1, 0.02),  # the prompt is done: this decodes
        step(9, 0, 9.0, engine=1),  # another engine's step of the same number
    ]
    assert prefill_steps(steps, ID, 1_000) == PrefillSteps(
        complete=True, chunks=2, tokens=1_000, steps=4, mean_chunk_step_seconds=0.5, mean_other_step_seconds=0.03
    )


def test_an_unpaced_prefill_has_no_other_steps() -> None:
    found = prefill_steps([step(2, 64), step(1, 64)], ID, 128)
    assert (found.chunks, found.steps, found.mean_other_step_seconds) == (2, 2, None)


def test_a_record_that_lost_the_first_chunks_is_not_complete() -> None:
    found = prefill_steps([step(8, 512), step(9, 1)], ID, 1_024)
    assert (found.complete, found.tokens) == (False, 513)


def test_another_request_is_not_taken_for_ours() -> None:
    other = EngineStep(engine=0, step=1, duration_seconds=0.1, scheduled={"cmpl-run-1-13-injected-0-0": 64})
    assert prefill_steps([other], ID, 64) == PrefillSteps(complete=False, chunks=0, tokens=0, steps=0)
