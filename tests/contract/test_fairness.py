"""Several prefills beside decoders take turns, by the time they have waited, on vLLM's real scheduler.

A resident decodes from step 2 on, and N is 4, so the mixed steps are 3, 7, 11... Beside one decoder a step of 64 tokens
has 63 left.
"""

from dataclasses import dataclass, field

import pytest
from harness import Driver, Options, fixed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_promise import promise, with_residents

from paceline.engine_ext.pacing.turns import Contender, shares
from paceline.engine_ext.settings import PacingSettings

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def with_resident(options: Options, interval: int = 4) -> Driver:
    driver = Driver(options, fixed(interval))
    driver.add("resident", 10, 10_000)
    driver.step(2 + options.asynchronous)
    return driver


@BOTH
def test_three_equal_prompts_take_turns(asynchronous: bool) -> None:
    driver = with_resident(Options(asynchronous=asynchronous))
    for name in ("first", "second", "third"):
        driver.add(name, 3 * 63, 1)
    driver.step(40)
    start = 3 + asynchronous
    assert driver.chunk_steps("first") == [start, start + 12, start + 24]
    assert driver.chunk_steps("second") == [start + 4, start + 16, start + 28]
    assert driver.chunk_steps("third") == [start + 8, start + 20, start + 32]
    assert {63} == {*driver.chunks("first"), *driver.chunks("second"), *driver.chunks("third")}


@BOTH
def test_short_prompt_does_not_wait_for_the_end_of_a_long_one(asynchronous: bool) -> None:
    driver = with_resident(Options(asynchronous=asynchronous))
    driver.add("long", 600, 1)
    driver.step()
    driver.add("short", 60, 1)
    driver.step(12)
    start = 3 + asynchronous
    # The long one came first and waited from its chunk in the first mixed step on, the short one from just after it.
    assert driver.chunk_steps("short") == [start + 8]
    assert driver.chunk_steps("long")[:4] == [start, start + 4, start + 8, start + 12]
    # What the short one leaves of the step goes to the long one.
    assert driver.chunks("long")[:4] == [63, 63, 3, 63]


def test_what_was_left_over_is_no_turn() -> None:
    driver = with_resident(Options())
    for name, prompt in (("first", 100), ("second", 126), ("third", 126)):
        driver.add(name, prompt, 1)
    driver.step(20)
    # In step 15 the first, with 37 tokens left, leaves 26 to the second, whose turn is nevertheless the next.
    mixed = [step.prefills for step in driver.steps if step.is_mixed]
    assert mixed[:5] == [
        {"first": 63},
        {"second": 63},
        {"third": 63},
        {"first": 37, "second": 26},
        {"second": 37, "third": 26},
    ]


def test_higher_priority_goes_first_whatever_the_wait() -> None:
    driver = with_resident(Options(policy="priority"))
    driver.add("low", 300, 1, priority=5)
    driver.step(4)
    driver.add("high", 126, 1, priority=1)
    driver.step(20)
    assert driver.chunk_steps("low")[:2] == [3, 15]
    assert driver.chunk_steps("high") == [7, 11]


def test_prompt_that_does_not_fit_beside_the_others_waits_for_them() -> None:
    driver = with_resident(Options(blocks=45))
    driver.add("first", 400, 1)
    driver.step()
    driver.add("second", 300, 1)
    while "first" not in driver.finished:
        driver.step()
    assert driver.chunk_steps("second") == []
    while "second" not in driver.finished:
        driver.step()
    assert not any(step.preempted for step in driver.steps)


def test_turn_that_nobody_can_use_starves_nobody() -> None:
    driver = with_resident(Options())
    for name in ("stuck", "other"):
        driver.add(name, 300, 1)
    driver.step(5)
    assert (driver.chunk_steps("stuck"), driver.chunk_steps("other")) == ([3], [7])
    # From here on the scheduler grants one prefill nothing, as where the encoder's cache is full.
    driver.scheduler.need_mamba_block_aligned_split = True
    driver.scheduler._mamba_block_aligned_split = lambda request, tokens: tokens * (request.request_id != "stuck")
    driver.step(20)
    # Its turns in steps 11, 16, 21 and 26 are lost; the step after each goes to the other one.
    assert driver.chunk_steps("stuck") == [3]
    assert driver.chunk_steps("other") == [7, 12, 17, 22, 27]


def test_stuck_prefill_keeps_the_turns_of_the_others_fair() -> None:
    driver = with_resident(Options())
    for name in ("stuck", "first", "second"):
        driver.add(name, 2_000, 1)
    driver.step(12)
    assert [driver.chunk_steps(name) for name in ("stuck", "first", "second")] == [[3], [7], [11]]
    driver.scheduler.need_mamba_block_aligned_split = True
    driver.scheduler._mamba_block_aligned_split = lambda request, tokens: tokens * (request.request_id != "stuck")
    driver.step(60)
    chunks = [len(driver.chunk_steps(name)) for name in ("first", "second")]
    assert min(chunks) >= 6
    assert (
        max(chunks) - min(chunks) <= sum(chunks) // 2
    )  # the step after a lost turn is the first one's, in vLLM's order
    assert driver.chunk_steps("stuck") == [3]


@BOTH
def test_prompt_whose_grammar_is_compiled_takes_turns_and_so_does_the_one_behind_it(asynchronous: bool) -> None:
    driver = with_resident(Options(asynchronous=asynchronous))
    driver.add("long", 2_000, 1)
    driver.step()
    driver.add("structured", 200, grammar=True)
    driver.add("plain", 100, 1)
    driver.step(8)
    start = 3 + asynchronous
    # The grammar is not compiled yet: the plain one passes it.
    assert driver.chunk_steps("structured") == []
    assert driver.chunk_steps("plain") == [start + 8]
    driver.compile_grammar("structured")
    driver.step(8)
    # The long one has waited since step +4, the structured one since it came, before that.
    assert driver.chunk_steps("structured") == [start + 12]
    assert driver.chunk_steps("long") == [start, start + 4, start + 16]


@BOTH
def test_prompt_that_is_mostly_cached_leaves_its_turn_to_the_others(asynchronous: bool) -> None:
    driver = with_resident(Options(prefix_caching=True, asynchronous=asynchronous))
    driver.add("before", 320, 1, salt=77)
    while "before" not in driver.finished:
        driver.step()
    driver.add("long", 2_000, 1)
    while not driver.chunks("long"):
        driver.step()
    driver.add("again", 320, 1, salt=77)
    while not driver.chunks("again"):
        driver.step()
    # 304 of its 320 tokens are cached: 16 to compute, and 47 of the step's 63 for the long one.
    assert driver.steps[-1].prefills == {"long": 47, "again": 16}


def test_preempted_prefill_under_a_limit_leaves_the_step_to_the_others() -> None:
    driver = with_resident(Options(long_prefill_tokens=16))
    for name in ("preempted", "first", "second", "third", "fourth"):
        driver.add(name, 2_000, 1)
    driver.step(20)
    driver.requests["preempted"].num_preemptions = 1  # from here on it is never held
    driver.step(20)
    assert driver.chunks("preempted")[-20:] == [16] * 20
    for name in ("first", "second", "third", "fourth"):
        assert len([step for step in driver.chunk_steps(name) if step > 22]) >= 2


def test_near_a_deadline_the_oldest_goes_first() -> None:
    driver = with_residents(promise(1, delay=150), 8)
    for name in ("older", "younger"):
        driver.add(name, 3_000, 1)
    start = driver.seconds
    while not {"older", "younger"} <= driver.finished:
        driver.step()
    assert driver.seconds - start <= 150
    assert driver.scheduler.slo.report()["prefillsBroken"] == 0
    assert max(driver.chunk_steps("older")) <= min(driver.chunk_steps("younger")[2:])


@BOTH
def test_unpaced_order_is_vllms_own(asynchronous: bool) -> None:
    runs = []
    for stock in (True, False):
        driver = Driver(Options(asynchronous=asynchronous), PacingSettings(), stock=stock)
        driver.add("resident", 10, 80)
        driver.step(3)
        for name, prompt in (("first", 300), ("second", 40), ("third", 200)):
            driver.add(name, prompt, 5)
            driver.step()
        driver.run_until_done(200)
        runs.append([step.tokens for step in driver.steps])
    assert runs[0] == runs[1]


@dataclass
class Turns:
    """Who had turns so far, and since when everybody else has waited for one: as the number of steps made."""

    driver: Driver
    waits_since: dict[str, int] = field(default_factory=dict)

    def step(self) -> None:
        """Make a step; whoever is in turn again must not have been in turn since another began to wait."""
        made = len(self.driver.steps)
        waiting = {name for name in self.driver.unfinished if not self.driver.outputs[name]} - {"resident"}
        for name in waiting:
            self.waits_since.setdefault(name, made)
        step = self.driver.step()
        turn = self.driver.scheduler.turn
        if turn is None:
            self.waits_since.update(dict.fromkeys(step.prefills, made + 1))
            return
        for name in waiting - step.prefills.keys():
            assert self.waits_since[name] >= self.waits_since[turn.in_turn]
        self.waits_since[turn.in_turn] = made + 1


arrivals = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 400)), min_size=2, max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(arrivals, st.integers(2, 6), st.booleans())
def test_nobody_has_two_turns_while_another_waits(
    story: list[tuple[int, int]], interval: int, asynchronous: bool
) -> None:
    driver = with_resident(Options(asynchronous=asynchronous), interval)
    turns = Turns(driver)
    for number, (pause, prompt) in enumerate(story):
        driver.add(f"r{number}", prompt, 1)
        for _ in range(pause):
            turns.step()
    while driver.unfinished - {"resident"}:
        turns.step()
        assert len(driver.steps) < 5_000


contenders = st.builds(
    Contender, rank=st.integers(0, 2), since=st.integers(0, 9).map(float), tokens=st.integers(1, 300), turns=st.just(0)
)


@given(st.lists(contenders, min_size=1, max_size=8), st.integers(0, 400), st.integers(1, 200))
def test_shares_go_by_rank_and_wait_and_waste_nothing(waiting: list[Contender], budget: int, cap: int) -> None:
    given_tokens = shares(waiting, budget, cap)
    wanted = [min(contender.tokens, cap) for contender in waiting]
    assert sum(given_tokens) == min(budget, sum(wanted))
    for index, contender in enumerate(waiting):
        ahead = [i for i, other in enumerate(waiting) if (other.rank, other.since) < (contender.rank, contender.since)]
        if given_tokens[index]:
            assert all(given_tokens[i] == wanted[i] for i in ahead)
