"""Two engine cores behind one port: a change reaches both, and each keeps a cadence of its own."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest
from completions import body, complete, prompt, resident
from engine_process import FRESH, MAX_NUM_BATCHED_TOKENS, Engine, Launch, running, tiny_spec

from paceline.bench.engine import EngineAddress, EngineClient

RANKS = (0, 1)
INTERVAL = 4
CHUNKS = 4
"""Chunks of the prompt that each core gets beside its resident."""
RESIDENT_TOKENS = 20_000
"""Far more than are needed: the residents are aborted once the prompts are through."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with running(Launch(tmp_path_factory.mktemp("pair"), tiny_spec(parallelism={"data": len(RANKS)}))) as engine:
        yield engine


def to_rank(rank: int) -> dict[str, str]:
    """Return the header by which vLLM sends a request to one of its cores."""
    return {"X-data-parallel-rank": str(rank)}


async def run_on(api: httpx.AsyncClient, rank: int) -> None:
    """Complete a prompt of several chunks on a core, beside a resident that decodes there."""
    salt, length = f"rank {rank}", CHUNKS * (MAX_NUM_BATCHED_TOKENS - 1) - 1
    async with resident(api, body(prompt(64, 1 + rank), RESIDENT_TOKENS, salt), to_rank(rank)):
        injected = await complete(api, body(prompt(length, 10 + rank), 4, salt), to_rank(rank))
    assert (len(injected.tokens), injected.finish_reason) == (4, "length")


async def test_one_change_paces_every_core(pair: Engine) -> None:
    headers = {"Authorization": f"Bearer {pair.token}"}
    async with (
        httpx.AsyncClient(base_url=pair.base_url, timeout=600) as api,
        httpx.AsyncClient(base_url=pair.admin_url, timeout=600, headers=headers, limits=FRESH) as admin,
    ):
        wanted = {"epoch": 0, "revision": 1, "pacing": {"mode": "Fixed", "interval": INTERVAL}}
        answer = await admin.put("/paceline/v1/settings", json=wanted)
        assert answer.status_code == 200, answer.text
        assert [engine["revision"] for engine in answer.json()["engines"]] == [1] * len(RANKS)
        await asyncio.gather(*(run_on(api, rank) for rank in RANKS))
    address = EngineAddress(pair.base_url, admin_url=pair.admin_url, admin_token=pair.token)
    async with EngineClient(address) as client:
        steps = await client.steps() or []
    for rank in RANKS:
        own = [step for step in steps if step.engine == rank]
        mixed = [step.step for step in own if len(step.scheduled) > 1 and max(step.scheduled.values()) > 1]
        assert len(mixed) >= CHUNKS
        assert {later - earlier for earlier, later in pairwise(mixed)} == {INTERVAL}, f"core {rank}: {mixed}"
