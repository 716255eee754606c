"""Random arrivals, aborts, and changes of N on vLLM's real scheduler, checked against what the driver itself saw."""

from dataclasses import dataclass, replace
from itertools import pairwise

from engines import SUPPORT
from harness import Driver, Options, Step, fixed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ARRIVE, ABORT, STEP = "arrive", "abort", "step"

engines = st.builds(
    Options,
    budget=st.sampled_from([32, 64, 100]),
    max_seqs=st.integers(1, 6),
    blocks=st.sampled_from([40, 60, 10_000]),
    asynchronous=st.booleans(),
    prefix_caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    drafts=st.just(0),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just(ARRIVE), st.integers(1, 300), st.integers(1, 40), st.integers(0, 3)),
        st.tuples(st.just(ABORT), st.integers(0, 20)),
        st.tuples(st.just(STEP), st.integers(1, 12)),
    ),
    min_size=2,
    max_size=25,
)
intervals = st.integers(2, 12)


@dataclass
class Run:
    """A driver that has played a random story to its end."""

    driver: Driver
    aborted: set[str]


def play(options: Options, interval: int, story: list[tuple[object, ...]]) -> Run:
    driver, aborted = Driver(options, fixed(interval)), set[str]()
    for event in story:
        if event[0] == ARRIVE:
            _, prompt, tokens, kind = event
            driver.add(f"r{len(driver.requests)}", prompt, tokens, priority=kind, salt=kind)
        elif event[0] == ABORT:
            alive = sorted(driver.unfinished)
            if alive:
                aborted.add(alive[event[1] % len(alive)])
                driver.abort(alive[event[1] % len(alive)])
        elif driver.unfinished:
            driver.step(event[1])
    driver.run_until_done(40_000)
    return Run(driver, aborted)


def paced_mixed(steps: list[Step]) -> list[int]:
    busy = [step for step in steps if step.tokens]
    return [n for n, step in enumerate(busy) if step.is_mixed and step.prefills.keys() - step.exempt]


PROPERTY = settings(
    max_examples=SUPPORT.examples,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


@PROPERTY
@given(engines, intervals, events)
def test_at_most_one_mixed_step_in_n_and_everything_ends_whole(
    options: Options, interval: int, story: list[tuple[object, ...]]
) -> None:
    run = play(options, interval, story)
    driver = run.driver
    for before, after in pairwise(paced_mixed(driver.steps)):
        assert after - before >= interval
    for name in driver.requests.keys() - run.aborted:
        driver.assert_whole(name)
    assert driver.free_blocks == options.blocks - 1
    assert driver.scheduler.requests == {}


@PROPERTY
@given(engines, intervals, events)
def test_no_step_is_empty_while_something_could_run(
    options: Options, interval: int, story: list[tuple[object, ...]]
) -> None:
    synchronous = replace(options, asynchronous=False)
    for variant in (options, replace(synchronous, pipeline=2)):
        driver = play(variant, interval, story).driver
        for step in driver.steps:
            assert step.tokens or step.preempted or not step.could_work


@PROPERTY
@given(engines, intervals, events)
def test_victims_are_those_that_stock_would_choose(
    options: Options, interval: int, story: list[tuple[object, ...]]
) -> None:
    driver = play(replace(options, blocks=40, max_seqs=6), interval, story).driver
    for step in driver.steps:
        if step.preempted:
            assert step.preempted == step.stock_victims[: len(step.preempted)]


@PROPERTY
@given(engines, intervals, events)
def test_nobody_is_held_longer_than_the_interval(
    options: Options, interval: int, story: list[tuple[object, ...]]
) -> None:
    driver = play(replace(options, blocks=10_000), interval, story).driver
    deferred = 0
    for record in driver.scheduler.step_log.records:
        if record.kind == "empty":
            continue
        deferred = deferred + 1 if record.deferred and not record.load.prefill_tokens else 0
        assert deferred < interval
