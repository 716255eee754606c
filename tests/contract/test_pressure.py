"""A cache too small for everybody: who is preempted, how often, and that nobody is forgotten afterwards."""

import random
from itertools import pairwise

import pytest
from harness import Driver, Options, fixed

from paceline.engine_ext.settings import PacingSettings

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def pressed(options: Options, pacing: PacingSettings, *, stock: bool = False) -> Driver:
    """Two residents that grow, and a newcomer whose prompt fills the cache: 40 blocks of 16 tokens."""
    driver = Driver(options, pacing, stock=stock)
    driver.add("resident", 30, 200)
    driver.add("neighbour", 30, 200)
    driver.step(2)
    driver.add("newcomer", 420, 20)
    return driver


def preemptions(driver: Driver, name: str) -> int:
    return sum(step.preempted.count(name) for step in driver.steps)


def paced_mixed_steps(driver: Driver) -> list[int]:
    """Return the numbers of the mixed steps that carried a prefill which pacing may hold."""
    return [n for n, step in enumerate(driver.steps, 1) if step.is_mixed and step.prefills.keys() - step.exempt]


@BOTH
@pytest.mark.parametrize("interval", [4, 8, 64])
def test_newcomer_is_preempted_at_most_once_more_than_unpaced(interval: int, asynchronous: bool) -> None:
    options = Options(blocks=40, asynchronous=asynchronous)
    paced, unpaced = pressed(options, fixed(interval)), pressed(options, PacingSettings())
    for driver in (paced, unpaced):
        driver.run_until_done(3_000)
        for name in driver.requests:
            driver.assert_whole(name)
        assert driver.free_blocks == options.blocks - 1  # one is the null block
    assert preemptions(paced, "newcomer") <= preemptions(unpaced, "newcomer") + 1


@BOTH
def test_pressure_is_real_and_the_held_newcomer_is_the_victim(asynchronous: bool) -> None:
    driver = pressed(Options(blocks=40, asynchronous=asynchronous), fixed(64))
    while not driver.steps[-1].preempted:
        driver.step()
    # The last of `running` is stock's victim, first come first served; the newcomer came last, held or not.
    assert driver.steps[-1].preempted == ["newcomer"]
    assert len(driver.chunks("newcomer")) < 7


@pytest.mark.parametrize("interval", [1, 4, 64])
def test_stock_scheduler_takes_the_same_victim(interval: int) -> None:
    victims = []
    for stock in (True, False):
        driver = Driver(Options(blocks=40), fixed(interval), stock=stock)
        driver.add("resident", 30, 250)
        driver.add("neighbour", 30, 250)
        driver.step(2)
        driver.add("newcomer", 200, 250)
        driver.step()
        while not driver.steps[-1].preempted:
            driver.step()
        victims.append(driver.steps[-1].preempted)
    assert victims == [["newcomer"], ["newcomer"]]


@BOTH
def test_preempted_newcomer_is_not_held_again(asynchronous: bool) -> None:
    driver = pressed(Options(blocks=40, asynchronous=asynchronous), fixed(64))
    driver.run_until_done(3_000)
    again = [number for number in driver.chunk_steps("newcomer") if "newcomer" in driver.steps[number - 1].exempt]
    assert again == list(range(again[0], again[-1] + 1))  # one chunk after the other, without a gap


@BOTH
def test_resumed_resident_is_not_held_and_pacing_stays_on(asynchronous: bool) -> None:
    # By priority the resident is the victim, although it came first.
    options = Options(blocks=40, asynchronous=asynchronous, policy="priority")
    driver = Driver(options, fixed(8))
    driver.add("resident", 120, 150, priority=5)
    driver.add("elder", 30, 300, priority=0)
    driver.step(3)
    driver.add("newcomer", 300, 150, priority=1)
    driver.run_until_done(3_000)
    assert preemptions(driver, "resident") >= 1
    for name in driver.requests:
        driver.assert_whole(name)
    mixed = paced_mixed_steps(driver)
    assert len(mixed) > 3
    assert min(after - before for before, after in pairwise(mixed)) >= 8


def test_outputs_equal_the_unpaced_ones() -> None:
    options = Options(blocks=40, prefix_caching=True)
    paced, unpaced = pressed(options, fixed(4)), pressed(options, PacingSettings())
    for driver in (paced, unpaced):
        driver.run_until_done(3_000)
    assert paced.outputs == unpaced.outputs


def test_exempt_head_of_the_queue_lets_nobody_else_in() -> None:
    driver = Driver(Options(blocks=40), fixed(64))
    driver.add("resident", 30, 300)
    driver.add("neighbour", 30, 190)
    driver.step(2)
    driver.add("newcomer", 300, 5)
    while "newcomer" not in driver.steps[-1].preempted:
        driver.step()
    driver.add("late", 20, 5)
    last_paced = paced_mixed_steps(driver)[-1]
    while "late" not in driver.steps[-1].prefills:
        driver.step()
    # Blocks come free when the neighbour ends: the newcomer goes on at once, the late one at its own time.
    resumed = next(n for n in driver.chunk_steps("newcomer") if "newcomer" in driver.steps[n - 1].exempt)
    neighbours_last = max(n for n, step in enumerate(driver.steps, 1) if "neighbour" in step.tokens)
    assert resumed == neighbours_last + 1
    assert driver.steps[resumed - 1].decoders == {"resident"}
    assert "late" not in driver.steps[resumed - 1].tokens
    assert len(driver.steps) - last_paced >= 64


@pytest.mark.parametrize("interval", [4, 8])
def test_no_prefill_is_held_into_a_second_preemption(interval: int) -> None:
    worst = 0
    for seed in range(30):
        chance = random.Random(seed)
        driver = Driver(Options(blocks=chance.choice([40, 60, 80]), max_seqs=8), fixed(interval))
        for name in ("resident", "neighbour"):
            driver.add(name, 30, chance.randint(50, 300))
        driver.step(3)
        driver.add("newcomer", chance.randint(200, 350), chance.randint(5, 50))
        for index in range(6):
            driver.add(f"late{index}", chance.randint(10, 60), chance.randint(20, 200))
        driver.run_until_done(5_000)
        worst = max(worst, *(driver.preemptions_while_paced(name) for name in driver.requests))
    assert worst == 1  # it does happen once, so the bound is put to the test
