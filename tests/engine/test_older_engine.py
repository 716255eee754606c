"""A real vLLM 0.22.1: no endpoint plugins, no throttle, and yet the same admin port and the same pacing.

It can't serve the tiny hybrid model, so it gets a small Llama with weights of its own drawing.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest
from completions import complete, prompt, resident
from engine_process import FRESH, MAX_NUM_BATCHED_TOKENS, ROOT, Engine, Launch, running, tiny_spec, wait_for

OLDER_PYTHON = ROOT / ".venv-engine-0.22.1" / "bin" / "python"
SETTINGS = "/paceline/v1/settings"
STEPS = "/paceline/v1/steps"
INTERVALS = (4, 8)
CHUNKS = 4
"""Chunks of each injected prompt beside one resident."""
RESIDENT_TOKENS = 20_000
"""Far more than are needed: the resident is aborted once the prompts are through."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = tmp_path_factory.mktemp("llama")
    subprocess.run([sys.executable, "-P", str(ROOT / "scripts" / "make_llama_model.py"), str(model)], check=True)
    spec = tiny_spec(extraArgs=["--enforce-eager", "--load-format", "dummy"])
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"source": f"file://{model}"})})
    # Also without --enforce-eager's compilations this version compiles its sampler, for a minute.
    env = {"TORCHDYNAMO_DISABLE": "1", "PACELINE_PAGE_GATE": "AnyPage"}
    with running(Launch(tmp_path_factory.mktemp("older"), spec, env=env, python=OLDER_PYTHON)) as engine:
        yield engine


def request(length: int, seed: int, max_tokens: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": prompt(length, seed),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }


def settings(revision: int, interval: int) -> dict[str, object]:
    return {"epoch": 0, "revision": revision, "pacing": {"mode": "Fixed", "interval": interval}}


async def run_beside_a_resident(api: httpx.AsyncClient, admin: httpx.AsyncClient, intervals: Sequence[int]) -> None:
    """While a resident decodes, set each interval in turn and complete a prompt of several chunks."""
    async with resident(api, request(64, 1, RESIDENT_TOKENS)):
        for revision, interval in enumerate(intervals, 1):
            answer = await admin.put(SETTINGS, json=settings(revision, interval))
            assert answer.status_code == 200, answer.text
            assert [engine["revision"] for engine in answer.json()["engines"]] == [revision]
            injected = await complete(api, request(CHUNKS * (MAX_NUM_BATCHED_TOKENS - 1), 10 + revision, 4))
            assert (len(injected.tokens), injected.finish_reason) == (4, "length")


async def records_of(admin: httpx.AsyncClient) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while page := (
        await admin.get(STEPS, params={"after": records[-1]["step"] if records else 0, "limit": 1_000})
    ).json()["records"]:
        records += page
        if len(page) < 1_000:
            break
    return records


async def test_interval_is_changed_live_and_kept(older: Engine) -> None:
    headers = {"Authorization": f"Bearer {older.token}"}
    async with (
        httpx.AsyncClient(base_url=older.base_url, timeout=600) as api,
        httpx.AsyncClient(base_url=older.admin_url, timeout=600, headers=headers, limits=FRESH) as admin,
    ):
        before = (await admin.get(SETTINGS)).json()
        await run_beside_a_resident(api, admin, INTERVALS)
        records = await records_of(admin)
    assert (before["compatible"], before["reasons"]) == (True, [])
    assert [(report["active"], len(report["obstacles"])) for report in before["coalescing"]] == [(False, 1)]
    assert [(report["active"], report["mode"]) for report in before["pageGate"]] == [(False, "AnyPage")]
    assert "differs from those tested (vLLM 0.32.0)" in before["pageGate"][0]["reason"]
    for revision, interval in enumerate(INTERVALS, 1):
        mixed = [r["step"] for r in records if (r["revision"], r["kind"]) == (revision, "mixed")]
        assert len(mixed) >= CHUNKS
        assert {later - earlier for earlier, later in pairwise(mixed)} == {interval}, f"interval {interval}: {mixed}"


def test_admin_port_keeps_its_token_and_its_fence(older: Engine) -> None:
    with older.admin() as admin:
        running_settings = admin.get(SETTINGS).json()["settings"]
        assert admin.put(SETTINGS, json=settings(0, 2)).status_code == 409
        assert admin.put(SETTINGS, json={"pacing": {"mode": "SLO"}}).status_code == 422
        for token in ({}, {"Authorization": "Bearer a-wrong-token-of-some-length"}):
            answer = httpx.put(older.admin_url + SETTINGS, json=settings(9, 9), headers=token)
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
        assert admin.get(SETTINGS).json()["settings"] == running_settings
        on_openai_port = httpx.get(older.base_url + SETTINGS, headers={"Authorization": f"Bearer {older.token}"})
        assert on_openai_port.status_code == 404


def test_counters_are_in_the_engines_own_metrics(older: Engine) -> None:
    wait_for(
        lambda: 'paceline_engine_steps_total{engine="0"' in httpx.get(f"{older.base_url}/metrics").text,
        60,
        "the monitor's first look at the engine core",
    )


def test_log_says_what_is_off_and_why(older: Engine) -> None:
    log = older.log_path.read_text()
    assert "paceline: final chunks are not coalesced: " in log
    assert "paceline: the page gate serves nothing: " in log
