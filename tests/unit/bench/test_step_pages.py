"""Reading the step records of several engine cores, which number their steps each for itself."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from bench_fakes import Body, Reply, http_server

from paceline.bench.engine import STEPS_PER_PAGE, EngineAddress, EngineClient


async def read(cores: dict[int, range], after: int | None) -> set[tuple[int, int]] | int:
    """Read all steps after `after`, or the newest step for None, of cores that hold the given steps."""

    async def answer(path: str, _: Body, reply: Reply) -> None:
        query = {key: int(value[0]) for key, value in parse_qs(urlsplit(path).query).items()}
        pages = {
            core: [step for step in steps if step > query["after"]][: query["limit"]]
            if "after" in query
            else list(steps)[-query["limit"] :]
            for core, steps in cores.items()
        }
        records = [
            {"engine": core, "step": step, "durationSeconds": 0.1, "scheduled": {}}
            for core, page in pages.items()
            for step in page
        ]
        await reply.whole(json.dumps({"records": records, "engines": len(cores)}))

    async with http_server(answer) as url, EngineClient(EngineAddress(url, admin_url=url)) as client:
        if after is None:
            return await client.newest_step()
        return {(step.engine, step.step) for step in await client.steps(after=after) or []}


@pytest.mark.parametrize(
    "cores",
    [
        {0: range(1, 2 * STEPS_PER_PAGE + 8)},
        {0: range(1, 5 * STEPS_PER_PAGE), 1: range(1, 12)},
        {0: range(20_000, 20_000 + 3 * STEPS_PER_PAGE), 1: range(1, 2 * STEPS_PER_PAGE + 8), 2: range(1, 1)},
        {0: range(1, STEPS_PER_PAGE + 1), 1: range(1, STEPS_PER_PAGE + 1)},
    ],
    ids=["one", "a busy one and a quiet one", "far apart", "exactly one page"],
)
async def test_every_step_of_every_core_is_read(cores: dict[int, range]) -> None:
    assert await read(cores, after=5) == {(core, step) for core, steps in cores.items() for step in steps if step > 5}


async def test_a_core_without_a_step_yet_has_all_of_them_to_come() -> None:
    assert await read({0: range(1, 900), 1: range(1, 30)}, after=None) == 29
    assert await read({0: range(1, 900), 1: range(1, 1)}, after=None) == 0
    assert await read({}, after=None) == 0
