"""Spare states: kept in memory that stock vLLM leaves unused, and the first to go when an allocation needs it."""

import pytest
from hybrid import OFF, ON, STATE_GROUPS, Engine, Options, prompt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.engine_ext.coalescing.spare import SparePool


def ordinary(pool):
    """Return the ids of cached blocks that nobody holds and that are not spare."""
    return {
        block.block_id
        for block in pool.blocks
        if block.ref_cnt == 0 and block.block_hash is not None and block.block_id not in pool.spares
    }


def test_a_lone_prompt_leaves_its_extra_states_spare():
    engine = Engine(ON)
    engine.add("a", prompt(1000))
    engine.run()
    # Retained for 1000 tokens in blocks of 64: 960 and 896, and 768 and 512; stock keeps 960 alone.
    assert sorted({block.block_hash_num_tokens for block in engine.pool.spares.values()}) == [512, 768, 896]
    assert len(engine.pool.spares) == 3 * STATE_GROUPS


def test_a_prompt_that_shares_no_more_than_a_spare_state_makes_it_ordinary():
    engine = Engine(ON)
    engine.add("a", prompt(1000))
    engine.run()
    engine.add("b", prompt(1000)[:768] + prompt(300, seed=3))
    engine.run()
    assert engine.hits["b"] == 768
    left = sorted({block.block_hash_num_tokens for block in engine.pool.spares.values()})
    assert 768 not in left
    assert {512, 896} <= set(left)


def test_a_full_cache_leaves_no_room_for_spare_states_but_keeps_the_needed_one():
    engine = Engine(ON, Options(blocks=60))
    engine.add("a", prompt(1000, seed=1))
    engine.run()
    engine.add("b", prompt(1000, seed=2))
    engine.run()
    engine.add("c", prompt(1000, seed=3))
    engine.run()
    assert engine.lengths("c") == [1000]
    hits = {block.block_hash_num_tokens for block in engine.pool.blocks if block.block_hash is not None}
    assert 960 in hits


def test_a_prompt_that_does_not_fit_with_its_plan_is_split_as_usual():
    # 16 blocks of attention and, in each of two groups, the states at 960 and at the end: 20, and one more each in
    # case a source must be held. 22 blocks are too few beside the null block.
    engine = Engine(ON, Options(blocks=22))
    engine.add("a", prompt(1000))
    engine.run()
    assert engine.lengths("a") == [960, 40]
    assert engine.report["notPlanned"]["NoFreeBlocks"] >= 1
    assert engine.leaked_blocks == 0


def filled(coalescing, blocks, documents):
    """Return an engine whose cache is full of documents of 1000 tokens, and what of them stock would keep, too."""
    engine = Engine(coalescing, Options(blocks=blocks))
    for seed in range(documents):
        engine.add(f"document {seed}", prompt(1000, seed=seed + 1))
        engine.run()
    return engine, prefixes(engine.pool)


def prefixes(pool):
    """Return the hashes of the cached blocks that are not spare."""
    return {
        block.block_hash for block in pool.blocks if block.block_hash is not None and block.block_id not in pool.spares
    }


def test_in_a_full_cache_a_prompt_of_several_chunks_runs_in_one_pass_a_span_for_no_prefix_more():
    lost = {}
    for coalescing, lengths in ((OFF, [1024, 512, 64]), (ON, [1024, 576])):
        engine, before = filled(coalescing, blocks=90, documents=5)
        engine.add("long", prompt(1600, seed=9))
        engine.run()
        assert engine.lengths("long") == lengths
        lost[lengths[-1]] = len(before - prefixes(engine.pool))
        assert engine.leaked_blocks == 0
    assert lost[576] == lost[64] > 0


@pytest.mark.parametrize("blocks", [90, 94, 98, 102, 120])
@pytest.mark.parametrize("delay", range(4))
def test_a_prompt_that_arrives_beside_a_coalesced_one_costs_no_prefix_more_than_beside_stock(blocks, delay):
    lost = []
    for coalescing in (OFF, ON):
        engine, before = filled(coalescing, blocks, documents=4)
        engine.add("long", prompt(1590, seed=9), max_tokens=20)
        for _ in range(delay):
            engine.step()
        engine.add("other", prompt(700, seed=10), max_tokens=20)
        engine.run()
        lost.append(len(before - prefixes(engine.pool)))
        assert engine.leaked_blocks == 0
    assert lost[1] <= lost[0]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    workload=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2000), st.integers(1, 300)), min_size=2, max_size=10),
    blocks=st.integers(60, 140),
)
def test_no_ordinary_block_is_evicted_while_a_spare_one_is_idle(workload, blocks):
    engine = Engine(ON, Options(blocks=blocks))
    evicted = []

    class Watched(SparePool):
        def get_new_blocks(self, num_blocks):
            before, idle = ordinary(self), [b for b in self.spares.values() if b.ref_cnt == 0]
            blocks = super().get_new_blocks(num_blocks)
            lost = before & {block.block_id for block in blocks}
            evicted.append((len(lost), len([b for b in idle if b.block_id in self.spares])))
            return blocks

    engine.pool.__class__ = Watched
    for number, (document, shared, own) in enumerate(workload):
        engine.add(f"r{number}", prompt(shared, seed=document) + prompt(own, seed=50 + number), 2)
        engine.run()
    assert all(lost == 0 or left == 0 for lost, left in evicted)
    assert engine.leaked_blocks == 0


def test_resetting_the_prefix_cache_forgets_spare_states():
    engine = Engine(ON)
    engine.add("a", prompt(1000))
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    assert not engine.pool.spares
    engine.add("b", prompt(1000))
    engine.run()
    assert engine.hits["b"] == 0


def test_spare_states_outlive_the_switch_and_stay_the_first_to_go():
    engine = Engine(ON, Options(blocks=60))
    engine.add("a", prompt(1000))
    engine.run()
    assert engine.pool.spares
    engine.set(coalescing=OFF)
    engine.add("b", prompt(2200, seed=2))
    engine.run()
    engine.add("a2", prompt(1000))
    engine.run()
    assert len(engine.pool.spares) < 3 * STATE_GROUPS
    assert engine.hits["a2"] == 960
