"""Several control APIs on one database: races, crashes, and many clients at once."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from api_support.apis import Api
from api_support.fake_engine import FakeEngine
from api_support.plans import all_items, follow_until, long_plan, plan, until_end
from api_support.servers import ApiProcess, wait_until
from api_support.state import API_TOKEN

HEADERS = {"Authorization": f"Bearer {API_TOKEN}"}
PACING = "/v1/profiles/lab/tiny/pacing"
WRITERS = 50
WRITES_EACH = 4


def running(summary: dict) -> bool:
    return summary["progress"] is not None and summary["progress"]["position"] >= 1


def test_one_key_raced_over_two_replicas_makes_one_experiment(start_api: Callable[..., Api], database_url: str) -> None:
    replicas = [start_api(database_url), start_api(database_url)]
    headers = {"Idempotency-Key": "raced"}

    def post(number: int) -> httpx.Response:
        return replicas[number % 2].client.post("/v1/experiments", json=plan(), headers=headers)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    assert [answer.status_code for answer in answers] == [202] * 20
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert [answer.headers["idempotency-replayed"] for answer in answers].count("false") == 1
    assert len(replicas[0].client.get("/v1/experiments").json()["items"]) == 1

    other = replicas[1].client.post("/v1/experiments", json=plan(seed=1), headers=headers)
    assert other.status_code == 422
    assert other.json()["type"] == "urn:paceline:problem:idempotency-key-reused"
    assert other.json()["experiment"] == answers[0].json()["id"]
    # Another key, or none, is another experiment.
    for extra in ({"Idempotency-Key": "second"}, {}):
        assert replicas[0].client.post("/v1/experiments", json=plan(), headers=extra).status_code == 202
    assert len(all_items(replicas[0].client, "/v1/experiments", limit=1)) == 3


def test_two_replicas_never_measure_one_profile_at_once(
    start_api: Callable[..., Api], database_url: str, engine: FakeEngine
) -> None:
    replicas = [start_api(database_url), start_api(database_url)]
    made = [replicas[number % 2].client.post("/v1/experiments", json=plan()).json()["id"] for number in range(4)]
    found = [until_end(replicas[0].client, experiment) for experiment in made]
    assert [experiment["status"] for experiment in found] == ["Succeeded"] * 4
    spans = sorted((experiment["startedAt"], experiment["endedAt"]) for experiment in found)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


def test_a_run_is_cancelled_through_the_replica_that_does_not_run_it(
    start_api: Callable[..., Api], database_url: str
) -> None:
    runs_it = start_api(database_url)
    experiment = runs_it.client.post("/v1/experiments", json=long_plan()).json()["id"]
    follow_until(runs_it.client, experiment, running)
    other = start_api(database_url)
    assert other.client.post(f"/v1/experiments/{experiment}/cancel").json()["status"] == "Running"
    assert until_end(other.client, experiment)["status"] == "Cancelled"


@pytest.fixture
def process(tmp_path: Path, state: Path, database_url: str) -> Iterator[Callable[[], ApiProcess]]:
    started: list[ApiProcess] = []

    def start() -> ApiProcess:
        environment = {
            "PACELINE_API_LOCAL_STATE": str(state),
            "PACELINE_API_DATABASE_URL": database_url,
            "PACELINE_API_RUN_LEASE_SECONDS": "3",
        }
        started.append(ApiProcess(environment, tmp_path / f"api-{len(started)}.log"))
        return started[-1].wait_ready()

    yield start
    for one in started:
        one.kill()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_run_whose_control_api_ends_is_interrupted_with_its_rows_and_the_pacing_back(
    process: Callable[[], ApiProcess], engine: FakeEngine, end: str
) -> None:
    first = process()
    with httpx.Client(base_url=first.url, headers=HEADERS, trust_env=False, timeout=60) as client:
        client.put(PACING, json={"mode": "Fixed", "interval": 7})
        experiment = client.post("/v1/experiments", json=long_plan()).json()["id"]
        follow_until(client, experiment, running)
        stored = len(all_items(client, f"/v1/experiments/{experiment}/requests"))
    assert stored >= 2
    getattr(first, end)()

    second = process()
    with httpx.Client(base_url=second.url, headers=HEADERS, trust_env=False, timeout=60) as client:
        found = until_end(client, experiment)
        assert found["status"] == "Interrupted"
        assert "kept" in found["failure"]
        assert len(all_items(client, f"/v1/experiments/{experiment}/requests")) >= stored
        wait_until(lambda: engine.settings.pacing.interval == 7, "the pacing's return")
        assert client.put(PACING, json={"mode": "Fixed", "interval": 8}).status_code == 200


def test_many_event_streams_pin_no_database_connection(start_api: Callable[..., Api], database_url: str) -> None:
    api = start_api(database_url, database_pool_size=5)
    experiment = api.client.post("/v1/experiments", json=long_plan()).json()["id"]

    async def watch() -> None:
        limits = httpx.Limits(max_connections=None)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=api.url, headers=HEADERS, trust_env=False, limits=limits, timeout=120)
            )
            streams = [
                await stack.enter_async_context(client.stream("GET", f"/v1/experiments/{experiment}/events"))
                for _ in range(40)
            ]
            lines = [stream.aiter_lines() for stream in streams]
            assert all([(await anext(line)).startswith(("event", "id", "data")) for line in lines])
            # A pinned connection each would leave none, and these would wait for the pool's 30 s and fail.
            answers = await asyncio.gather(*(client.get(f"/v1/experiments/{experiment}") for _ in range(10)))
            assert [answer.status_code for answer in answers] == [200] * 10
            page = (await client.get("/metrics")).text
            assert "paceline_api_event_streams 40.0" in page

    asyncio.run(watch())
    api.client.post(f"/v1/experiments/{experiment}/cancel")
    until_end(api.client, experiment)
    wait_until(lambda: "paceline_api_event_streams 0.0" in api.client.get("/metrics").text, "the streams' end")


def test_fifty_writers_beside_watchers_meet_no_error(start_api: Callable[..., Api], database_url: str) -> None:
    # What is under test is the writing: a lease that runs out on a busy machine would end the run that is watched.
    replicas = [start_api(database_url, run_lease_seconds=600) for _ in range(2)]
    watched = replicas[0].client.post("/v1/experiments", json=long_plan()).json()["id"]

    async def write() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=api.url, headers=HEADERS, trust_env=False, limits=limits, timeout=300)
                )
                for api in replicas
            ]
            for number in range(10):
                path = f"/v1/experiments/{watched}/events"
                await stack.enter_async_context(clients[number % 2].stream("GET", path))

            async def writer(number: int) -> list[int]:
                statuses = []
                for turn in range(WRITES_EACH):
                    client = clients[(number + turn) % 2]
                    made = await client.post("/v1/experiments", json=plan(name=f"{number}-{turn}"))
                    statuses.append(made.status_code)
                    ended = await client.post(f"/v1/experiments/{made.json()['id']}/cancel")
                    statuses.append(ended.status_code)
                return statuses

            return [status for done in await asyncio.gather(*map(writer, range(WRITERS))) for status in done]

    statuses = asyncio.run(write())
    assert sorted(set(statuses)) == [200, 202]
    assert len(statuses) == 2 * WRITERS * WRITES_EACH
    replicas[0].client.post(f"/v1/experiments/{watched}/cancel")
    assert until_end(replicas[0].client, watched)["status"] == "Cancelled"
    stored = all_items(replicas[1].client, "/v1/experiments", limit=200)
    assert len(stored) == WRITERS * WRITES_EACH + 1
    assert {experiment["status"] for experiment in stored} == {"Cancelled"}
