"""Which step schedules which chunk, exactly, on vLLM's real scheduler.

A resident decodes from step 2 on. A newcomer of 300 tokens arrives before step 3; beside one decoder a step has 63
tokens left for it, so it takes five chunks: 63, 63, 63, 63, 48.
"""

from itertools import pairwise

import pytest
from harness import Driver, Options, fixed

from paceline.engine_ext.settings import PacingSettings

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def with_resident(options: Options, interval: int, max_tokens: int = 1_000) -> Driver:
    driver = Driver(options, fixed(interval))
    driver.add("resident", 10, max_tokens)
    driver.step(2)
    return driver


@BOTH
@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (0, [3, 4, 5, 6, 7]),
        (1, [3, 4, 5, 6, 7]),
        (2, [3, 5, 7, 9, 11]),
        (4, [3, 7, 11, 15, 19]),
        (8, [3, 11, 19, 27, 35]),
    ],
)
def test_newcomer_gets_one_chunk_in_n_steps(interval: int, expected: list[int], asynchronous: bool) -> None:
    driver = with_resident(Options(asynchronous=asynchronous), interval)
    if asynchronous:
        driver.step()  # the resident's first token is seen one step later
        expected = [step + 1 for step in expected]
    driver.add("newcomer", 300)
    driver.step(40)
    assert driver.chunk_steps("newcomer") == expected
    assert driver.chunks("newcomer") == [63, 63, 63, 63, 48]
    assert all("resident" in step.tokens for step in driver.steps)


@BOTH
def test_staggered_prefills_share_one_cadence(asynchronous: bool) -> None:
    driver = with_resident(Options(asynchronous=asynchronous), 4)
    driver.step(2)
    start = len(driver.steps) + 1
    for name in ("first", "second", "third"):
        driver.add(name, 100)
        driver.step()
    driver.step(60)
    mixed = [number for number, step in enumerate(driver.steps, 1) if step.is_mixed]
    assert mixed == list(range(start, start + 4 * len(mixed), 4))
    # 300 tokens at 63, 62 and 61 a step beside one, two and three decoders: 63+37, 62+38..., in five steps.
    assert len(mixed) == 5
    assert [sum(driver.steps[number - 1].prefills.values()) for number in mixed] == [63, 63, 62, 62, 50]


def test_prefill_runs_at_once_when_the_last_decoder_finishes() -> None:
    driver = with_resident(Options(), 8, max_tokens=6)
    driver.add("newcomer", 300)
    driver.step(12)
    # The resident's tokens come from steps 1 to 6; step 3 is the newcomer's first, and step 7 its next.
    assert driver.chunk_steps("newcomer") == [3, 7, 8, 9, 10]
    assert "resident" not in driver.steps[6].tokens


def test_prefill_runs_at_once_when_the_last_token_is_in_flight() -> None:
    driver = with_resident(Options(asynchronous=True), 8, max_tokens=6)
    driver.step()
    driver.add("newcomer", 300)
    driver.step(12)
    assert driver.chunk_steps("newcomer") == [4, 7, 8, 9, 10]


@BOTH
def test_prefill_runs_at_once_when_the_last_decoder_is_aborted(asynchronous: bool) -> None:
    driver = with_resident(Options(asynchronous=asynchronous), 64)
    driver.step()
    driver.add("newcomer", 300)
    driver.step(3)
    assert driver.chunk_steps("newcomer") == [4]
    driver.abort("resident")
    driver.step(4)
    assert driver.chunk_steps("newcomer") == [4, 7, 8, 9, 10]


def test_aborted_newcomer_leaves_the_cadence_as_it_was() -> None:
    driver = with_resident(Options(), 8)
    driver.add("aborted", 300)
    driver.step(2)
    driver.abort("aborted")
    driver.add("newcomer", 300)
    driver.step(20)
    assert driver.chunk_steps("aborted") == [3]
    assert driver.chunk_steps("newcomer")[:2] == [11, 19]


@BOTH
def test_lone_prompt_is_not_slowed(asynchronous: bool) -> None:
    paced, unpaced = (Driver(Options(asynchronous=asynchronous), pacing) for pacing in (fixed(64), PacingSettings()))
    for driver in (paced, unpaced):
        driver.add("lone", 16_384, 3)
        driver.run_until_done(400)
    assert paced.chunk_steps("lone") == unpaced.chunk_steps("lone") == list(range(1, 257))


def test_queue_longer_than_the_capacity() -> None:
    driver = Driver(Options(max_seqs=3), fixed(4))
    driver.add("resident", 10, 400)
    driver.step(2)
    for index in range(8):
        driver.add(f"queued{index}", 100, 5)
    driver.run_until_done(500)
    mixed = [number for number, step in enumerate(driver.steps, 1) if step.is_mixed]
    assert min(b - a for a, b in pairwise(mixed)) == 4
    for index in range(8):
        driver.assert_whole(f"queued{index}")
    assert max(len(step.tokens) for step in driver.steps) == 3


def test_interval_changed_midway_keeps_the_last_mixed_step() -> None:
    driver = with_resident(Options(), 8)
    driver.add("newcomer", 600)
    driver.step(4)
    assert driver.chunk_steps("newcomer") == [3]
    driver.set_pacing(fixed(4))  # after step 6: three steps have passed, so step 7 may be mixed
    driver.step(5)
    assert driver.chunk_steps("newcomer") == [3, 7, 11]
    driver.set_pacing(fixed(2))
    driver.step(2)
    assert driver.chunk_steps("newcomer") == [3, 7, 11, 13]
    driver.set_pacing(PacingSettings())
    driver.step(2)
    assert driver.chunk_steps("newcomer") == [3, 7, 11, 13, 14, 15]


def test_pause_by_the_user_is_left_as_it_was() -> None:
    from vllm.v1.core.sched.interface import PauseState

    driver = with_resident(Options(), 4)
    driver.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    driver.add("newcomer", 100)
    driver.step(10)
    assert driver.chunk_steps("newcomer") == []
    assert driver.scheduler.pause_state is PauseState.PAUSED_NEW
    driver.scheduler.set_pause_state(PauseState.UNPAUSED)
    driver.step(1)
    assert driver.chunk_steps("newcomer") == [13]


@BOTH
def test_prompt_wholly_in_the_prefix_cache_waits_no_longer_than_the_interval(asynchronous: bool) -> None:
    driver = with_resident(Options(prefix_caching=True, asynchronous=asynchronous), 8)
    driver.step()
    driver.add("first", 320, 4, salt=77)
    driver.step(60)
    driver.add("again", 320, 4, salt=77)
    driver.step(10)
    assert driver.chunks("again") == [16]  # the cache never serves the last token, so the last block is computed
    assert driver.chunk_steps("again")[0] - 1 - driver.chunk_steps("first")[-1] >= 8
    driver.assert_whole("again")


def test_release_counts_only_when_prefill_tokens_were_scheduled() -> None:
    driver = with_resident(Options(), 8)
    driver.add("structured", 300, grammar=True)  # its grammar is not compiled yet, so no release can use it
    driver.step(3)
    assert driver.chunk_steps("structured") == []
    driver.compile_grammar("structured")
    driver.step(9)
    assert driver.chunk_steps("structured") == [6, 14]
