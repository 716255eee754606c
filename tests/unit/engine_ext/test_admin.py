"""The admin port over HTTP, with engine cores that answer as told: late, broken, or not alike."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline.engine_ext.admin.app import build_app
from paceline.engine_ext.admin.cores import EngineCores
from paceline.engine_ext.admin.metrics import EngineCollector
from paceline.engine_ext.admin.monitor import Monitor
from paceline.engine_ext.live import decide
from paceline.engine_ext.settings import LiveSettings

TOKEN = "0123456789abcdef"
KINDS = ("decode", "mixed", "prefill", "empty")


@dataclass
class Core:
    """An engine core's side of the utility calls."""

    rank: int
    live: LiveSettings = LiveSettings(epoch=1, revision=5)  # noqa: RUF009 - immutable
    step: int = 10
    unfinished: int = 0
    hangs: bool = False
    fails: str | None = None

    def state(self) -> dict[str, Any]:
        return {
            "engine": self.rank,
            "epoch": self.live.epoch,
            "revision": self.live.revision,
            "step": self.step,
            "paced": True,
            "reasons": [],
            "compatible": True,
            "settings": self.live.model_dump(mode="json", by_alias=True, exclude_none=True),
            "unfinished": self.unfinished,
            "counters": self.counters(),
            "pacing": {"mode": "Fixed", "intervalSteps": 4},
            "coalescing": {"active": False, "obstacles": []},
            "pageGate": {
                "mode": "AnyPage",
                "active": True,
                "pageTokens": 784,
                "served": 3,
                "servedRows": 70,
                "refused": {"Sinks": 2},
            },
        }

    def counters(self) -> dict[str, Any]:
        return {
            **{kind: {"steps": 1 + self.rank, "tokens": 10, "seconds": 0.5} for kind in KINDS},
            "deferredPrefillSteps": 3,
            "preemptions": 0,
            "settingsChanges": 1,
        }

    def paceline_state(self) -> dict[str, Any]:
        return self.state()

    def paceline_apply(self, document: str) -> dict[str, Any]:
        applied = decide(self.live, LiveSettings.model_validate_json(document))
        self.live = applied.running
        return {**self.state(), "verdict": applied.verdict.value}

    def paceline_steps(self, after: int | None, limit: int) -> dict[str, Any]:
        return {"counters": self.counters(), "records": [{"engine": self.rank, "step": (after or 0) + 1}][:limit]}


@dataclass
class Client:
    """vLLM's engine client, as far as the admin port uses it."""

    cores: list[Core]
    calls: list[str] = field(default_factory=list)

    @property
    def core_engines(self) -> list[bytes]:
        return [core.rank.to_bytes(2, "little") for core in self.cores]

    async def _call_utility_async(self, method: str, *args: Any, engine: bytes) -> Any:
        core = self.cores[int.from_bytes(engine, "little")]
        self.calls.append(method)
        if core.hangs:
            await asyncio.Event().wait()
        if core.fails is not None:
            raise RuntimeError(core.fails)
        return getattr(core, method)(*args)


@dataclass
class Port:
    cores: list[Core]
    monitor: Monitor
    http: httpx.AsyncClient
    now: list[float]


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    now = [0.0]
    cores = [Core(0), Core(1)]
    asked = EngineCores(Client(cores), answer_seconds=0.05)
    monitor = Monitor(asked, stall_seconds=30.0, clock=lambda: now[0])
    transport = httpx.ASGITransport(build_app(asked, monitor, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", headers=headers) as http:
        yield Port(cores, monitor, http, now)


SETTINGS = "/paceline/v1/settings"


async def test_settings_tell_what_every_core_runs(port: Port) -> None:
    body = (await port.http.get(SETTINGS)).json()
    assert body["settings"]["revision"] == 5
    assert body["engines"] == [
        {"engine": rank, "epoch": 1, "revision": 5, "step": 10, "paced": True, "reasons": []} for rank in (0, 1)
    ]
    assert (body["compatible"], body["reasons"]) == (True, [])


async def test_put_reaches_every_core(port: Port) -> None:
    new = {"epoch": 1, "revision": 6, "pacing": {"mode": "Fixed", "interval": 8}}
    answer = await port.http.put(SETTINGS, json=new)
    assert answer.status_code == 200
    assert answer.json()["settings"]["pacing"] == {"mode": "Fixed", "interval": 8}
    assert [core.live.revision for core in port.cores] == [6, 6]
    assert (await port.http.put(SETTINGS, json=new)).status_code == 200  # a retry


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"epoch": 1, "revision": 4}, "epoch 1, revision 4 is older than what the engine runs (epoch 1, revision 5)"),
        ({"epoch": 0, "revision": 9}, "is older"),
        ({"epoch": 1, "revision": 5, "pacing": {"mode": "Fixed"}}, "two writers used one revision"),
    ],
)
async def test_stale_or_conflicting_settings_change_nothing(port: Port, body: dict[str, Any], words: str) -> None:
    before = [core.live for core in port.cores]
    answer = await port.http.put(SETTINGS, json=body)
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in answer.json()["detail"]
    assert [core.live for core in port.cores] == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"pacing": {"interval": -1}}', "pacing.interval"),
        (b'{"pacing": {"interval": 1000000000}}', "pacing.interval"),
        (b'{"pacingg": {}}', "pacingg: Extra inputs"),
        (b"not json", "document: Invalid JSON"),
        (b"", "document: Invalid JSON"),
    ],
)
async def test_invalid_settings_are_explained(port: Port, content: bytes, words: str) -> None:
    answer = await port.http.put(SETTINGS, content=content)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert [core.live.revision for core in port.cores] == [5, 5]


async def test_endless_body_is_cut_off(port: Port) -> None:
    assert (await port.http.put(SETTINGS, content=b" " * 70_000)).status_code == 413


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong-token-wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer tökén"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", SETTINGS), ("PUT", SETTINGS), ("GET", "/paceline/v1/steps")])
async def test_only_the_token_opens_the_port(port: Port, method: str, path: str, header: str | None) -> None:
    del port.http.headers["Authorization"]
    headers = {} if header is None else {"Authorization": header.encode()}
    answer = await port.http.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["status"] == 401
    assert port.cores[0].live.revision == 5


@pytest.mark.parametrize("fault", ["hangs", "fails"])
async def test_core_that_does_not_answer_is_named(port: Port, fault: str) -> None:
    setattr(port.cores[1], fault, True if fault == "hangs" else "out of memory")
    answer = await port.http.put(SETTINGS, json={"epoch": 1, "revision": 6})
    assert answer.status_code == 503
    reason = "no answer within 0.05 s" if fault == "hangs" else "out of memory"
    assert answer.json()["engines"] == [{"engine": 1, "message": reason}]
    assert port.cores[0].live.revision == 6


async def test_steps_of_all_cores_are_added_up(port: Port) -> None:
    body = (await port.http.get("/paceline/v1/steps", params={"after": 4, "limit": 1})).json()
    assert body["engines"] == 2
    assert body["counters"]["mixed"] == {"steps": 3, "tokens": 20, "seconds": 1.0}
    assert body["counters"]["deferredPrefillSteps"] == 6
    assert body["records"] == [{"engine": 0, "step": 5}, {"engine": 1, "step": 5}]


@pytest.mark.parametrize("query", ["limit=1001", "limit=-1", "after=-1", "limit=many"])
async def test_bad_queries_are_refused(port: Port, query: str) -> None:
    assert (await port.http.get(f"/paceline/v1/steps?{query}")).status_code == 422


async def test_ready_once_all_cores_have_answered(port: Port) -> None:
    assert (await port.http.get("/readyz")).status_code == 503
    port.monitor.note([core.state() for core in port.cores])
    assert (await port.http.get("/readyz")).status_code == 200


async def test_healthy_while_steps_are_made_or_nothing_waits(port: Port) -> None:
    for step in range(5):
        port.now[0] += 29.0
        port.cores[0].unfinished, port.cores[0].step = 3, 10 + step
        port.monitor.note([core.state() for core in port.cores])
        assert (await port.http.get("/healthz")).status_code == 200


async def test_unhealthy_when_work_waits_and_one_core_stands_still(port: Port) -> None:
    port.cores[0].unfinished = port.cores[1].unfinished = 1
    port.monitor.note([core.state() for core in port.cores])
    for _ in range(4):
        port.now[0] += 10.0
        port.cores[0].step += 1
        port.monitor.note([core.state() for core in port.cores])
    answer = await port.http.get("/healthz")
    assert answer.status_code == 503
    assert "neither made a step nor said that it is idle for 40 s" in answer.json()["detail"]
    port.cores[1].step += 1
    port.monitor.note([core.state() for core in port.cores])
    assert (await port.http.get("/healthz")).status_code == 200


async def test_unhealthy_when_a_core_answers_no_more(port: Port) -> None:
    port.monitor.note([core.state() for core in port.cores])
    port.now[0] += 31.0
    assert (await port.http.get("/healthz")).status_code == 503


async def test_metrics_are_well_formed(port: Port) -> None:
    unpaced_by_choice = {**port.cores[0].state(), "paced": False}
    port.monitor.note(
        [unpaced_by_choice, {**port.cores[1].state(), "paced": False, "reasons": ["a foreign scheduler"]}]
    )
    registry = CollectorRegistry()
    registry.register(EngineCollector(port.monitor))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    assert samples["paceline_engine_steps_total", (("engine", "1"), ("kind", "mixed"))] == 2
    assert samples["paceline_engine_step_seconds_total", (("engine", "0"), ("kind", "decode"))] == 0.5
    assert samples["paceline_engine_interval_steps", (("engine", "0"),)] == 4
    assert samples["paceline_engine_revision", (("engine", "1"),)] == 5
    assert [samples["paceline_engine_paced", (("engine", rank),)] for rank in "01"] == [0, 0]
    assert [samples["paceline_engine_pacing_obstacles", (("engine", rank),)] for rank in "01"] == [0, 1]
    assert samples["paceline_engine_page_gate_served_rows_total", (("engine", "1"),)] == 70
    assert samples["paceline_engine_page_gate_refused_calls_total", (("engine", "0"), ("reason", "Sinks"))] == 2
