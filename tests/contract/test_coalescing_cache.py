"""What coalescing must never do: cost a cache hit, leak a block, publish a state that is not written."""

import random
from dataclasses import dataclass

import pytest
from hybrid import OFF, ON, Engine, Options, prompt
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

thorough = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Arrival:
    """A prompt that shares its first `shared` tokens with document `document`, added before step `step`."""

    step: int
    document: int
    shared: int
    own: int
    outputs: int
    abort_after: int | None = None
    priority: int = 0

    def tokens(self, number: int) -> list[int]:
        return prompt(self.shared, seed=self.document) + prompt(self.own, seed=100 + number)


arrivals = st.builds(
    Arrival,
    step=st.integers(0, 25),
    document=st.integers(0, 2),
    shared=st.integers(0, 2600),
    own=st.integers(1, 400),
    outputs=st.integers(1, 12),
)
aborted_arrivals = st.builds(
    Arrival,
    step=st.integers(0, 25),
    document=st.integers(0, 2),
    shared=st.integers(0, 2600),
    own=st.integers(1, 400),
    outputs=st.integers(1, 90),
    abort_after=st.none() | st.integers(0, 6),
    priority=st.integers(0, 2),
)


def play(engine, workload, limit=4000):
    """Add each prompt at its step, abort those that are to be aborted, and run until all is done."""
    pending = sorted(enumerate(workload), key=lambda item: item[1].step)
    aborts = {}
    for step in range(limit):
        while pending and pending[0][1].step <= step:
            number, arrival = pending.pop(0)
            engine.add(f"r{number}", arrival.tokens(number), arrival.outputs, arrival.priority)
            if arrival.abort_after is not None:
                aborts.setdefault(step + arrival.abort_after, []).append(f"r{number}")
        for name in aborts.pop(step, ()):
            engine.abort(name)
        if not pending and not aborts and not engine.scheduler.requests and not engine.in_flight:
            return
        engine.step()
    raise AssertionError(f"unfinished after {limit} steps: {list(engine.scheduler.requests)}")


@pytest.mark.parametrize("asynchronous", [False, True])
@thorough
@given(workload=st.lists(arrivals, min_size=1, max_size=7))
def test_off_schedules_byte_for_byte_like_stock(asynchronous, workload):
    options = Options(asynchronous=asynchronous)
    stock = Engine(None, options, AsyncScheduler if asynchronous else Scheduler)
    ours = Engine(OFF, options)
    play(stock, workload)
    play(ours, workload)
    assert ours.spans == stock.spans
    assert ours.hits == stock.hits
    assert ours.worker.holds == stock.worker.holds  # the same blocks, with the same contents
    assert ours.report["plannedSpans"] == 0


@pytest.mark.parametrize("asynchronous", [False, True])
@thorough
@given(workload=st.lists(arrivals, min_size=1, max_size=7), budget=st.sampled_from([1024, 100]))
def test_never_fewer_hits_than_stock(asynchronous, workload, budget):
    options = Options(asynchronous=asynchronous, budget=budget)
    off, on = Engine(OFF, options), Engine(ON, options)
    play(off, workload)
    play(on, workload)
    assert {name: on.hits[name] >= hit for name, hit in off.hits.items()} == dict.fromkeys(off.hits, True)
    assert on.leaked_blocks == off.leaked_blocks == 0


def test_a_state_where_another_prompt_branched_off_is_kept_as_stock_keeps_it():
    document = prompt(1000)
    for coalescing in (OFF, ON):
        engine = Engine(coalescing)
        engine.add("document", document)
        engine.run()
        for number, name in enumerate(("first branch", "second branch"), 1):
            engine.add(name, document[:300] + prompt(700, seed=number))
            engine.run()
        # 300 tokens are shared: the first branch finds no state there and makes one at 256, the last block they share.
        assert engine.hits == {"document": 0, "first branch": 0, "second branch": 256}
    assert engine.lengths("first branch") == [1000]


@pytest.mark.parametrize("blocks", range(48, 54))
def test_a_prompt_preempted_in_its_own_step_leaves_nothing_that_it_never_wrote(blocks):
    # Steps of 64 tokens of a low-priority document beside two decoders, which need their next blocks in the step in
    # which its last block is published. The worker raises when a request reads a block that was not computed.
    engine = Engine(ON, Options(policy="priority", budget=127, blocks=blocks))
    document = prompt(2404, seed=9)
    request = engine.add("document", document, priority=9)
    engine.step()
    for number in range(2):
        engine.add(f"decoder {number}", prompt(30, seed=number), max_tokens=60)
    engine.run()
    engine.add("later", document[:2390] + prompt(64, seed=4))
    engine.run()
    assert request.num_preemptions > 0
    assert engine.hits["later"] == 2368
    assert engine.leaked_blocks == 0


@settings(thorough, max_examples=20)
@given(workload=st.lists(aborted_arrivals, min_size=1, max_size=7), blocks=st.integers(70, 140))
def test_with_drafts_every_step_is_as_with_coalescing_off(workload, blocks):
    off, on = (Engine(coalescing, Options(drafts=3, blocks=blocks)) for coalescing in (OFF, ON))
    play(off, workload)
    play(on, workload)
    assert on.spans == off.spans
    assert on.hits == off.hits
    assert on.report["plannedSpans"] == 0
    assert on.leaked_blocks == off.leaked_blocks == 0


@example(  # the state at 1024, from which the third prompt's span starts, must not cost the first prompt's block
    workload=[
        Arrival(0, 1, 64, 1, 1),
        Arrival(0, 0, 1509, 400, 12),
        Arrival(0, 0, 1152, 1, 1),
        Arrival(0, 1, 64, 1, 1),
    ],
    blocks=60,
)
@thorough
@given(workload=st.lists(arrivals, min_size=2, max_size=7), blocks=st.integers(60, 160) | st.just(4000))
def test_never_fewer_hits_than_stock_one_after_the_other_also_where_blocks_are_evicted(workload, blocks):
    off, on = Engine(OFF, Options(blocks=blocks)), Engine(ON, Options(blocks=blocks))
    for engine in (off, on):
        for number, arrival in enumerate(workload):
            engine.add(f"r{number}", arrival.tokens(number), arrival.outputs)
            engine.run()
    assert {name: on.hits[name] >= hit for name, hit in off.hits.items()} == dict.fromkeys(off.hits, True)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_more_is_hit_than_beside_stock_where_prompts_run_beside_each_other_and_blocks_are_evicted(asynchronous):
    # A prompt that ends sooner lets others in sooner, so a single one may find less than beside stock; together they
    # find more: docs/decisions/2026-11-29-spare-states.md.
    totals = {False: 0, True: 0}
    for seed in range(8):
        generator = random.Random(seed)
        numbers = ((0, 60), (0, 3), (0, 2600), (1, 400), (1, 40))
        workload = [Arrival(*(generator.randint(*bounds) for bounds in numbers)) for _ in range(12)]
        blocks = generator.randint(90, 160)
        for coalescing in (OFF, ON):
            engine = Engine(coalescing, Options(asynchronous=asynchronous, blocks=blocks))
            play(engine, workload)
            totals[coalescing is ON] += sum(engine.hits.values())
    assert totals[True] > totals[False] > 0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("asynchronous", [False, True])
@thorough
@given(workload=st.lists(aborted_arrivals, min_size=1, max_size=9), blocks=st.integers(56, 120), flips=st.booleans())
def test_under_pressure_with_aborts_every_state_read_is_right_and_no_block_leaks(
    asynchronous, policy, workload, blocks, flips
):
    # The bookkeeping worker raises when a request reads a state that is not the one of its own tokens.
    engine = Engine(ON, Options(asynchronous=asynchronous, policy=policy, blocks=blocks))
    if flips:
        original = engine.step

        def step():
            engine.set(coalescing=OFF if engine.scheduler.live.coalescing == ON else ON)
            return original()

        engine.step = step
    play(engine, workload)
    assert engine.leaked_blocks == 0
    assert not engine.pool.spares or all(block.ref_cnt == 0 for block in engine.pool.spares.values())
