"""Final-chunk coalescing on a real engine over HTTP: passes counted, retained prefixes hit, outputs unchanged."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from completions import Completion, body, complete, decoding, first_difference, prompt, resident
from engine_process import FRESH, Engine, Launch, running, tiny_spec, wait_for

BLOCK, BUDGET = 512, 8_192
RESIDENT_TOKENS = 600
"""Enough that a resident outlives a prompt also where the client is slow."""
RETAINED = (12_288, 14_336, 15_360, 15_872)
"""What a prompt of 16228 keeps inside its last span, on grids of 512 and 2048 tokens."""


@pytest.fixture(scope="module")
def coalescing_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with the source's block and budget, which says how much of a prompt it found in its cache."""
    spec = tiny_spec(
        maxNumBatchedTokens=BUDGET,
        kvCache={"sizeGibibytes": 1, "blockSizeTokens": BLOCK},
        extraArgs=["--enforce-eager", "--enable-prompt-tokens-details"],
    )
    with running(Launch(tmp_path_factory.mktemp("coalescing"), spec)) as started:
        yield started


class Client:
    """Talks to the engine and its admin port."""

    def __init__(self, api: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
        self.api, self.admin = api, admin

    async def set(self, final_chunk: str, pacing: dict[str, Any] | None = None, **coalescing: str) -> None:
        now = (await self.admin.get("/paceline/v1/settings")).json()["settings"]
        wanted = {
            "epoch": now["epoch"],
            "revision": now["revision"] + 1,
            "coalescing": {"finalChunk": final_chunk, **coalescing},
            "pacing": pacing or {"mode": "Disabled"},
        }
        answer = await self.admin.put("/paceline/v1/settings", json=wanted)
        assert answer.status_code == 200, answer.text

    async def counters(self) -> dict[str, Any]:
        answer = await self.admin.get("/paceline/v1/steps", params={"limit": 0})
        return dict(answer.json()["counters"]["coalescing"])

    async def not_planned(self, reason: str, more_than: int = -1) -> int:
        """Wait until more spans than that were not planned for a reason, and return how many."""
        async with asyncio.timeout(300):
            while (count := (await self.counters())["notPlanned"].get(reason, 0)) <= more_than:
                await asyncio.sleep(0.01)
        return int(count)

    async def records(self, after: int) -> list[dict[str, Any]]:
        """Return the records of all steps after one: beside a resident they can be thousands."""
        records: list[dict[str, Any]] = []
        while True:
            answer = await self.admin.get("/paceline/v1/steps", params={"after": after, "limit": 1_000})
            page = answer.json()["records"]
            records += page
            if len(page) < 1_000:
                return records
            after = page[-1]["step"]

    async def last_step(self) -> int:
        records = (await self.admin.get("/paceline/v1/steps", params={"limit": 1})).json()["records"]
        return int(records[-1]["step"]) if records else 0

    async def ask(self, tokens: list[int], salt: str, max_tokens: int = 4) -> tuple[Completion, int, list[int]]:
        """Return a completion, how many prompt tokens were found in the cache, and the tokens of each pass."""
        before = await self.last_step()
        completion, cached = Completion(), 0
        request = body(tokens, max_tokens, salt) | {"stream": False}
        answer = await self.api.post("/v1/completions", json=request)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        completion.add(document["choices"][0])
        cached = (document["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        passes = [
            count
            for record in await self.records(before)
            for name, count in record["scheduled"].items()
            if name.startswith(document["id"]) and count > 1
        ]
        return completion, cached, passes


@asynccontextmanager
async def connected(engine: Engine) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {engine.token}"}
    async with (
        httpx.AsyncClient(base_url=engine.base_url, timeout=900) as api,
        httpx.AsyncClient(base_url=engine.admin_url, timeout=900, headers=headers, limits=FRESH) as admin,
    ):
        yield Client(api, admin)


@pytest.fixture
async def client(coalescing_engine: Engine) -> AsyncIterator[Client]:
    async with connected(coalescing_engine) as client:
        yield client


@pytest.fixture
async def small(engine: Engine) -> AsyncIterator[Client]:
    """The engine of all tests, with a budget of 512 tokens and blocks of 256, which vLLM chose itself."""
    async with connected(engine) as client:
        yield client
        await client.set("Disabled")


async def test_16228_tokens_run_in_two_passes_and_every_retained_prefix_is_hit(client: Client) -> None:
    document = prompt(16_228, 1)
    await client.set("Disabled")
    split, hit, passes = await client.ask(document, "off")
    assert (hit, passes) == (0, [8_192, 7_680, 356])
    await client.set("Enabled")
    before = await client.counters()
    coalesced, hit, passes = await client.ask(document, "on")
    after = await client.counters()
    assert (hit, passes) == (0, [8_192, 8_036])
    assert first_difference(coalesced, split) is None
    assert after["plannedSpans"] - before["plannedSpans"] == 1
    assert after["exportedStates"] - before["exportedStates"] == len(RETAINED)

    warm = {}
    for position in RETAINED:
        warm[position], hit, _ = await client.ask(document[:position] + prompt(4, position), "on")
        assert hit == position
        _, hit, _ = await client.ask(document[: position - 1] + prompt(4, position), "on")
        assert hit == max((kept for kept in RETAINED if kept < position), default=0)
    await client.set("Disabled")
    for position, answer in warm.items():
        from_cold, hit, _ = await client.ask(document[:position] + prompt(4, position), f"cold {position}")
        assert hit == 0
        assert first_difference(answer, from_cold) is None


async def test_a_prompt_that_hits_a_retained_state_answers_as_from_cold(client: Client) -> None:
    document = prompt(3_500, 2)
    later = document[:3_072] + prompt(4, 3)
    await client.set("Disabled")
    from_cold, hit, _ = await client.ask(later, "cold", max_tokens=12)
    assert hit == 0
    await client.set("Enabled")
    await client.ask(document, "warm")
    warm, hit, _ = await client.ask(later, "warm", max_tokens=12)
    assert hit == 3_072
    assert first_difference(warm, from_cold) is None


async def test_no_fewer_hits_than_stock_on_the_same_prompts(client: Client) -> None:
    documents = [prompt(4_000, seed) for seed in (20, 21)]
    lengths = (3_999, 2_700, 3_100, 1_536, 3_600, 2_048)
    workload = [
        documents[number % 2][:length] + prompt(40 + number, 60 + number) for number, length in enumerate(lengths)
    ]
    hits = {}
    for final_chunk in ("Disabled", "Enabled"):
        await client.set(final_chunk)
        hits[final_chunk] = [(await client.ask(tokens, f"hits-{final_chunk}"))[1] for tokens in workload * 2]
    assert all(on >= off for on, off in zip(hits["Enabled"], hits["Disabled"], strict=True)), hits
    assert sum(hits["Enabled"]) > sum(hits["Disabled"])


async def test_beside_decoders_paced_and_switched_while_they_stream(client: Client) -> None:
    await client.set("Disabled")
    document = prompt(6_244, 30)
    alone, _, _ = await client.ask(document, "alone")
    unpaced = [(await client.ask(prompt(64, seed), "alone", RESIDENT_TOKENS))[0] for seed in (31, 32, 33)]
    await client.set("Enabled", {"mode": "Fixed", "interval": 4})
    tasks = [await decoding(client.api, body(prompt(64, seed), RESIDENT_TOKENS, "beside")) for seed in (31, 32, 33)]
    planned = await client.counters()
    beside, _, passes = await client.ask(document, "beside")
    assert passes == [6_244]
    assert (await client.counters())["plannedSpans"] - planned["plannedSpans"] == 1
    await client.set("Disabled")
    for streamed, expected in zip(await asyncio.gather(*tasks), unpaced, strict=True):
        assert first_difference(streamed, expected) is None
    assert first_difference(beside, alone) is None


async def test_admission_is_changed_on_a_running_engine(client: Client) -> None:
    await client.set("Enabled", admission="Exclusive")
    async with resident(client.api, body(prompt(64, 70), 16_000, "admission")):
        refused = (await client.counters())["notPlanned"].get("NotAlone", 0)
        _, _, split = await client.ask(prompt(1_800, 71), "admission")
        assert (await client.counters())["notPlanned"]["NotAlone"] > refused
        await client.set("Enabled", admission="SinglePrefill")
        _, _, coalesced = await client.ask(prompt(1_800, 72), "admission")
    assert (split, coalesced) == ([1_536, 264], [1_800])


async def test_counters_are_in_the_metrics(client: Client, coalescing_engine: Engine) -> None:
    await client.set("Enabled")
    for length in (700, 300):
        await client.ask(prompt(length, 50), f"metrics {length}")
    counters = await client.counters()
    assert counters["plannedSpans"] > 0
    assert counters["notPlanned"]["NothingToExport"] > 0
    lines = [
        f'paceline_engine_coalesced_spans_total{{engine="0"}} {float(counters["plannedSpans"])}',
        f'paceline_engine_exported_states_total{{engine="0"}} {float(counters["exportedStates"])}',
    ] + [
        f'paceline_engine_uncoalesced_spans_total{{engine="0",reason="{reason}"}} {float(count)}'
        for reason, count in counters["notPlanned"].items()
    ]

    def shown() -> bool:
        page = httpx.get(f"{coalescing_engine.base_url}/metrics").text
        return all(line in page for line in lines)

    await asyncio.to_thread(wait_for, shown, 60, f"the metrics page has {lines}")


async def test_a_prompt_that_hits_part_of_itself_runs_the_rest_in_one_pass(small: Client) -> None:
    document, salt = prompt(500, 40), uuid.uuid4().hex
    later = document[:300] + prompt(384, 41)
    await small.set("Disabled")
    from_cold, _, passes = await small.ask(later, f"{salt} cold")
    assert sum(passes) == 684
    await small.set("Enabled")
    await small.ask(document, salt)
    warm, _, passes = await small.ask(later, salt)
    assert passes == [684 - 256]
    assert first_difference(warm, from_cold) is None


def blocks_in_use(engine: Engine) -> int:
    """Return how many cache blocks requests hold, by the last step's metrics."""
    page = httpx.get(f"{engine.base_url}/metrics").text
    used = re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", page, re.MULTILINE)
    blocks = re.search(r'num_gpu_blocks="(\d+)"', page)
    assert used
    assert blocks
    return round(float(used[1]) * (int(blocks[1]) - 1))


async def test_two_prefills_in_flight_and_one_aborted_leak_no_block(small: Client, engine: Engine) -> None:
    salt, given_up, kept = uuid.uuid4().hex, prompt(30_000, 42), prompt(1_000, 43)
    await small.set("Disabled")
    alone = [(await small.ask(tokens, f"{salt} alone"))[0] for tokens in (kept, given_up[:1_000])]
    await asyncio.to_thread(wait_for, lambda: blocks_in_use(engine) == 0, 60, "nobody holds a block before")
    await small.set("Enabled")
    nothing, other = await small.not_planned("NothingToExport"), await small.not_planned("OtherPrefill")
    first = asyncio.create_task(complete(small.api, body(given_up, 4, salt)))
    await small.not_planned("NothingToExport", more_than=nothing)  # the long prompt is being computed
    second = asyncio.create_task(small.ask(kept, salt))
    await small.not_planned("OtherPrefill", more_than=other)  # and now beside another prompt
    assert blocks_in_use(engine) > 0
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    answer, _, passes = await second
    assert passes == [512, 488]  # it waited for the long one to be gone, and was then planned
    assert first_difference(answer, alone[0]) is None
    again, _, _ = await small.ask(given_up[:1_000], salt)
    assert first_difference(again, alone[1]) is None
    await asyncio.to_thread(wait_for, lambda: blocks_in_use(engine) == 0, 60, "nobody holds a block afterwards")
