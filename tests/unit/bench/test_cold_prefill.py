"""Cold prefill over lengths: the order of the blocks, every prompt cold, and nothing measured where something broke."""

import asyncio

import pytest
from bench_fakes import FakeEngine

from paceline.bench.cold_prefill import ColdPrefill, ColdPrefillRun
from paceline.bench.engine import EngineAddress, EngineClient
from paceline.bench.mixed_phase import BlockProblemError
from paceline.bench.plan import Arm
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk

ARMS = (Arm(name="stock"), Arm(name="coalesced", coalescing=CoalescingSettings(final_chunk=FinalChunk.ENABLED)))


async def run(fake, work, arms=ARMS, times=1):
    applied, told = [], []

    async def apply(arm):
        applied.append(arm.name)

    async with fake.serve() as url:
        async with EngineClient(EngineAddress(url)) as client:
            await client.fingerprint()
            cold = ColdPrefillRun(client, apply, told.append)
            samples = [sample for _ in range(times) for sample in await cold.run(work, arms)]
        async with asyncio.timeout(10):  # the engine notices a little later that its clients went away
            while fake.running:
                fake.ended.clear()
                await fake.ended.wait()
    assert told == samples
    return samples, applied


def test_arms_alternate_so_that_a_drift_adds_the_same_to_each():
    order = ColdPrefill(lengths=(10,), samples=3).block_order(ARMS)
    assert [(sample, arm.name) for sample, arm in order] == [
        (0, "stock"),
        (0, "coalesced"),
        (1, "coalesced"),
        (1, "stock"),
        (2, "stock"),
        (2, "coalesced"),
    ]


async def test_each_length_runs_once_a_block_and_every_prompt_is_cold():
    fake = FakeEngine()
    samples, applied = await run(fake, ColdPrefill(lengths=(200, 100), samples=2))
    assert applied == ["stock", "coalesced", "coalesced", "stock"]
    assert [(s.arm, s.length, s.sample) for s in samples] == [
        (arm, length, sample)
        for sample, arm in ((0, "stock"), (0, "coalesced"), (1, "coalesced"), (1, "stock"))
        for length in (200, 100)
    ]
    assert fake.counters["vllm:prefix_cache_hits"] == 0
    assert all(sample.seconds > 0 and sample.passes is None for sample in samples)
    same = [sample.record.output_token_ids for sample in samples if (sample.length, sample.sample) == (200, 0)]
    assert same[0] == same[1]  # both arms are given the same prompt


async def test_the_same_work_run_again_is_cold_again():
    fake = FakeEngine()
    samples, _ = await run(fake, ColdPrefill(lengths=(100,), samples=1), times=2)
    assert len(samples) == 4
    assert set(fake.hits.values()) == {0}


async def test_a_prompt_that_was_not_cold_makes_the_run_fail():
    with pytest.raises(BlockProblemError, match="coalesced-0-100-0 was not cold: 100 of its tokens were cached"):
        await run(FakeEngine(salted=False), ColdPrefill(lengths=(100,), samples=1))


async def test_residents_decode_beside_and_are_ended_with_the_block():
    fake = FakeEngine()
    samples, _ = await run(fake, ColdPrefill(lengths=(100,), samples=1, residents=3))
    assert [sample.residents for sample in samples] == [3, 3]
    assert sum("resident" in name for name in fake.started) == 6
    assert fake.running == 0


async def test_a_resident_that_ends_early_makes_the_run_fail():
    work = ColdPrefill(lengths=(2_000,), samples=1, residents=1, resident_max_tokens=5)
    with pytest.raises(BlockProblemError, match="a resident ended before the block did"):
        await run(FakeEngine(), work)


@pytest.mark.parametrize("fault", ["error", "cut", "unfinished", "refused"])
async def test_a_broken_request_is_no_sample(fault):
    with pytest.raises(BlockProblemError, match="coalesced-0-100-0 ended"):
        await run(FakeEngine(faults={"coalesced-0-100-0": fault}), ColdPrefill(lengths=(100,), samples=1))
