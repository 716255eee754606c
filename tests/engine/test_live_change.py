"""N is changed four times on a real engine while requests stream; the engine's own steps show what each change did."""

import uuid
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from completions import body, complete, decoding, first_difference, prompt
from engine_process import FRESH, MAX_NUM_BATCHED_TOKENS, Engine

INTERVALS = (4, 2, 8, 1)
CHUNKS = 4
"""Chunks of each injected prompt: its length is one token short of as many full budgets beside two residents."""
RESIDENT_TOKENS = 1_500
"""Enough that the residents outlive the prefills also where the client is slow."""


@pytest.fixture
async def clients(engine: Engine) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    headers = {"Authorization": f"Bearer {engine.token}"}
    async with (
        httpx.AsyncClient(base_url=engine.base_url, timeout=600) as api,
        httpx.AsyncClient(base_url=engine.admin_url, timeout=600, headers=headers, limits=FRESH) as admin,
    ):
        yield api, admin


async def put_interval(admin: httpx.AsyncClient, interval: int) -> int:
    """Set the interval at the next revision and return that."""
    running = (await admin.get("/paceline/v1/settings")).json()["settings"]
    pacing = {"mode": "Fixed", "interval": interval}
    wanted = {"epoch": running["epoch"], "revision": running["revision"] + 1, "pacing": pacing}
    answer = await admin.put("/paceline/v1/settings", json=wanted)
    assert answer.status_code == 200, answer.text
    assert [engine["revision"] for engine in answer.json()["engines"]] == [wanted["revision"]]
    return int(wanted["revision"])


async def all_records(admin: httpx.AsyncClient, after: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while page := (
        await admin.get("/paceline/v1/steps", params={"after": records[-1]["step"] if records else after, "limit": 200})
    ).json()["records"]:
        records += page
    return records


async def last_step(admin: httpx.AsyncClient) -> int:
    records = (await admin.get("/paceline/v1/steps", params={"limit": 1})).json()["records"]
    return int(records[-1]["step"]) if records else 0


async def test_four_changes_while_requests_stream(
    engine: Engine, clients: tuple[httpx.AsyncClient, httpx.AsyncClient]
) -> None:
    api, admin = clients
    salt, before = uuid.uuid4().hex, await last_step(admin)
    residents = [await decoding(api, body(prompt(64, seed), RESIDENT_TOKENS, salt)) for seed in (1, 2)]
    length = CHUNKS * (MAX_NUM_BATCHED_TOKENS - 2) - 1
    revisions, injected = {}, []
    for seed, interval in enumerate(INTERVALS, 10):
        revisions[await put_interval(admin, interval)] = interval
        injected.append(await complete(api, body(prompt(length, seed), 4, salt)))
        assert not any(task.done() for task in residents), "the residents ended too early to be beside the prefills"
    records = await all_records(admin, before)
    streamed = [await task for task in residents]

    for revision, interval in revisions.items():
        mixed = [record["step"] for record in records if record["revision"] == revision and record["kind"] == "mixed"]
        assert len(mixed) >= CHUNKS
        assert {after - before for before, after in pairwise(mixed)} == {interval}, f"interval {interval}: {mixed}"
    assert not any(record["kind"] == "empty" for record in records[:-1])

    for completion in streamed:
        assert (len(completion.tokens), completion.finish_reason) == (RESIDENT_TOKENS, "length")
    assert [(len(completion.tokens), completion.finish_reason) for completion in injected] == [(4, "length")] * 4

    await put_interval(admin, 0)
    for seed, paced in enumerate(streamed, 1):
        alone = await complete(api, body(prompt(64, seed), RESIDENT_TOKENS, f"{salt} unpaced"))
        assert first_difference(paced, alone) is None
    for seed, paced in enumerate(injected, 10):
        alone = await complete(api, body(prompt(length, seed), 4, f"{salt} unpaced"))
        assert first_difference(paced, alone) is None


async def test_comparison_would_notice_a_corrupted_state(clients: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    api, _ = clients
    tokens = prompt(1_500, 50)
    right = await complete(api, body(tokens, 8, "right"))
    again = await complete(api, body(tokens, 8, "again"))
    assert first_difference(right, again) is None
    # The prompt's last block is not what it should be: the fault that a mixed-up state would be.
    wrong = await complete(api, body(tokens[:1_436] + prompt(64, 51), 8, "wrong"))
    assert first_difference(right, wrong) is not None
