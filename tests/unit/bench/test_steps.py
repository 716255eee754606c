import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench_fakes import Body, Reply, http_server

from paceline.bench.engine import EngineAddress, EngineClient
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


def test_the_revisions_are_those_of_the_prefills_own_steps() -> None:
    revisions = {6: 1, 7: 2, 8: 2, 9: 3, 10: 4}
    steps = [step(number, 64 if number in (7, 9) else 0) for number in revisions]
    steps = [each.model_copy(update={"revision": revisions[each.step]}) for each in steps]
    assert prefill_steps(steps, ID, 128).revisions == (2, 3)


def test_a_record_that_lost_the_first_chunks_is_not_complete() -> None:
    found = prefill_steps([step(8, 512), step(9, 1)], ID, 1_024)
    assert (found.complete, found.tokens) == (False, 513)


def test_another_request_is_not_taken_for_ours() -> None:
    other = EngineStep(engine=0, step=1, duration_seconds=0.1, scheduled={"cmpl-run-1-13-injected-0-0": 64})
    assert prefill_steps([other], ID, 64) == PrefillSteps(complete=False, chunks=0, tokens=0, steps=0)


class StepLog:
    """An admin port with a ring of steps, that makes a new step at every question, as a busy engine does."""

    def __init__(self, engines: int, steps: int):
        self.newest = dict.fromkeys(range(engines), steps)

    async def answer(self, path: str, _body: Body, reply: Reply) -> None:
        query = parse_qs(urlsplit(path).query)
        limit = int(query["limit"][0])
        records: list[dict[str, Any]] = []
        for engine, newest in self.newest.items():
            held = range(max(1, newest - 1_023), newest + 1)
            own = (
                [step for step in held if step > int(query["after"][0])][:limit] if "after" in query else held[-limit:]
            )
            records += [{"engine": engine, "step": n, "durationSeconds": 0.1, "scheduled": {"r": 1}} for n in own]
            self.newest[engine] = newest + 1
        await reply.whole(json.dumps({"records": records, "counters": {}, "engines": len(self.newest)}))


async def test_the_whole_ring_is_read_though_new_steps_keep_coming() -> None:
    for engines in (1, 2):
        log = StepLog(engines, steps=3_000)
        async with http_server(log.answer) as url, EngineClient(EngineAddress(url, admin_url=url)) as client:
            steps = await asyncio.wait_for(client.steps(), 30)
        assert steps is not None
        for engine in range(engines):
            numbers = [step.step for step in steps if step.engine == engine]
            assert len(set(numbers)) == len(numbers) >= 1_024
            assert set(range(1_977, 3_001)) <= set(numbers)


async def test_only_the_steps_after_the_newest_that_all_engine_cores_had_finished_are_read() -> None:
    log = StepLog(2, steps=3_000)
    log.newest[1] = 2_990
    async with http_server(log.answer) as url, EngineClient(EngineAddress(url, admin_url=url)) as client:
        before = await client.newest_step()
        steps = await client.steps(after=before)
    assert before == 2_990
    assert steps is not None
    assert {(step.engine, step.step) for step in steps} == {(0, n) for n in range(2_991, 3_002)} | {(1, 2_991)}


async def test_without_an_admin_port_no_steps_are_told() -> None:
    async with EngineClient(EngineAddress("http://127.0.0.1:9")) as client:
        assert await client.newest_step() == 0
        assert await client.steps() is None
