"""Draft tokens: no prefill chunk of the size of a verify batch, and no placeholder ever reaches the model."""

from itertools import accumulate

import pytest
from harness import Driver, Options, fixed
from vllm.v1.core.sched.scheduler import Scheduler

from paceline.engine_ext.settings import PacingSettings

DRAFTS = 3
VERIFY = 1 + DRAFTS


@pytest.mark.parametrize("prompt", range(2, 3 * VERIFY))  # vLLM itself pads a prompt of one token to a verify batch
def test_short_prompt_never_looks_like_a_verify_batch(prompt: int) -> None:
    driver = Driver(Options(drafts=DRAFTS), fixed(4))
    driver.add("resident", 20, 100)
    driver.step(3)
    driver.add("newcomer", prompt, 8)
    driver.run_until_done(200)
    assert VERIFY not in driver.chunks("newcomer")
    assert sum(driver.chunks("newcomer")) == prompt
    driver.assert_whole("newcomer")


@pytest.mark.parametrize("remainder", range(8))
def test_last_chunk_never_looks_like_a_verify_batch(remainder: int) -> None:
    driver = Driver(Options(drafts=DRAFTS), PacingSettings())
    driver.add("lone", 2 * 64 + remainder, 8)
    driver.run_until_done(200)
    assert VERIFY not in driver.chunks("lone")
    assert sum(driver.chunks("lone")) == 2 * 64 + remainder


@pytest.mark.parametrize("remainder", range(8))
def test_a_draft_model_that_looks_ahead_finds_what_it_wants_beside_every_chunk(remainder: int) -> None:
    driver = Driver(Options(drafts=DRAFTS), PacingSettings())
    driver.scheduler.num_prefill_lookahead = DRAFTS
    prompt = 2 * 64 + remainder
    driver.add("lone", prompt, 8)
    driver.run_until_done(200)
    chunks = driver.chunks("lone")
    assert VERIFY not in chunks
    assert sum(chunks) == prompt
    # vLLM 0.22.1 knows no such draft model.
    wanted = DRAFTS if hasattr(Scheduler, "_reserve_prefill_lookahead") else 0
    left = [prompt - done for done in accumulate(chunks)]
    assert not [tokens for tokens in left if 0 < tokens < wanted]


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_decoders_keep_their_drafts(accepted: int) -> None:
    driver = Driver(Options(drafts=DRAFTS), fixed(4), wrong_drafts_from=accepted)
    driver.add("resident", 20, 60)
    driver.run_until_done(200)
    # The first token comes with the prompt, the second before any draft, then 1 + accepted a step.
    assert [step.tokens.get("resident") for step in driver.steps[2:5]] == [VERIFY] * 3
    assert len(driver.steps) <= 2 + -(-59 // (1 + accepted)) + 2
    driver.assert_whole("resident")


def test_step_without_drafts_leaves_no_placeholder() -> None:
    driver = Driver(Options(drafts=DRAFTS), fixed(4), drafts_every=3)
    driver.add("resident", 20, 60)
    driver.step(3)
    driver.add("newcomer", 300, 30)
    driver.run_until_done(300)
    for name in driver.requests:
        driver.assert_whole(name)


@pytest.mark.parametrize("seed", range(5))
def test_aborts_preemptions_and_changes_of_n_leave_outputs_as_unpaced(seed: int) -> None:
    outputs = []
    for paced in (True, False):
        driver = Driver(Options(drafts=DRAFTS, blocks=40), fixed(8) if paced else PacingSettings(), wrong_drafts_from=2)
        driver.add("resident", 30, 150)
        driver.add("neighbour", 30, 150)
        driver.step(3)
        driver.add("newcomer", 350 + seed, 20)
        driver.add("aborted", 200, 20)
        for step in range(60):
            if paced:
                driver.set_pacing(fixed((8, 2, 16, 1, 4)[(step + seed) % 5]))
            if step == 20 + seed:
                driver.abort("aborted")
            if driver.unfinished:
                driver.step()
        driver.run_until_done(3_000)
        outputs.append({name: tokens for name, tokens in driver.outputs.items() if name != "aborted"})
        for name in outputs[-1]:
            driver.assert_whole(name)
    assert outputs[0] == outputs[1]
