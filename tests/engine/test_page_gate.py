"""The page gate on real engines: the same requests on vLLM's page and kernel, and on the model's own page with ours."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from completions import Completion, body, complete, first_difference, prompt
from engine_process import ROOT, Engine, Launch, running, wait_for

from paceline.operator.api.v1alpha1 import InferenceProfileSpec

# No prompt of one token: alone in its step, vLLM's own convolution ends the engine on it (docs/kernels.md says where).
PROMPTS = (prompt(2, 1), prompt(33, 2), prompt(1_700, 3), prompt(2_500, 4))
MODEL_PAGE, STOCK_PAGE = 784, 896
OUTPUT = 12


def page_spec(mode: str) -> InferenceProfileSpec:
    """Return the example's profile of the model whose page is 784 tokens, with the gate in a mode."""
    done = subprocess.run(["bash", str(ROOT / "scripts/page_model.sh")], check=True, stdout=subprocess.PIPE, text=True)
    spec = yaml.safe_load((ROOT / "examples" / "cpu-page-gate.yaml").read_text())["spec"]
    spec["model"]["source"] = f"file://{done.stdout.strip().splitlines()[-1]}"
    spec["engine"]["maxNumBatchedTokens"] = 1_024
    return InferenceProfileSpec.model_validate(spec | {"pageGate": {"mode": mode}})


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with running(Launch(tmp_path_factory.mktemp("any_page"), page_spec("AnyPage"))) as started:
        yield started


@pytest.fixture(scope="module")
def stock_answers(tmp_path_factory: pytest.TempPathFactory) -> list[Completion]:
    """What vLLM alone answers; its engine ends before the other one is asked."""
    with running(Launch(tmp_path_factory.mktemp("disabled"), page_spec("Disabled"))) as started:
        answers = ask(started)
        report = gate_report(started)
        assert (report["mode"], report["active"], report["servedRows"]) == ("Disabled", False, 0)
        assert report["pageTokens"] == STOCK_PAGE
        return answers


def ask(engine: Engine) -> list[Completion]:
    """Return greedy completions of all prompts, asked at once, so that prefills run beside decoding requests."""

    async def all_at_once() -> list[Completion]:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=900) as client:
            requests = (complete(client, body(tokens, OUTPUT, "gate")) for tokens in PROMPTS)
            return list(await asyncio.gather(*requests))

    return asyncio.run(all_at_once())


def gate_report(engine: Engine) -> dict[str, Any]:
    with engine.admin() as admin:
        return dict(admin.get("/paceline/v1/settings").json()["pageGate"][0])


def test_outputs_equal_those_of_vllms_own_kernel_and_page(
    stock_answers: list[Completion], gated: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = gate_report(gated)
    assert (before["mode"], before["active"], before["reason"]) == ("AnyPage", True, None)
    assert (before["pageTokens"], before["pageReason"]) == (MODEL_PAGE, None)
    pairs = list(zip(ask(gated), stock_answers, strict=True))
    tokens = [a == b for mine, theirs in pairs for a, b in zip(mine.tokens, theirs.tokens, strict=True)]
    with capsys.disabled():
        print(f"\npage gate: {sum(tokens)} of {len(tokens)} greedy tokens equal")
    assert [first_difference(mine, theirs) for mine, theirs in pairs] == [None] * len(PROMPTS)
    assert any(mine.tokens == theirs.tokens for mine, theirs in pairs)  # a tie parts few answers for good
    after = gate_report(gated)
    assert after["message"] == f"AnyPage: pages of {MODEL_PAGE} tokens, as the model asks for"
    rows = sum(map(len, PROMPTS)) + len(PROMPTS) * (OUTPUT - 1)  # one attention layer; a last token is never run
    assert after["servedRows"] - before["servedRows"] == rows
    assert after["refused"] == {}


def test_what_was_served_is_in_the_counters_and_the_metrics(gated: Engine) -> None:
    ask(gated)
    served = gate_report(gated)["servedRows"]
    assert served > 0
    with gated.admin() as admin:
        counters = admin.get("/paceline/v1/steps", params={"limit": 0}).json()["counters"]
    assert counters["pageGate"]["servedRows"] == served
    expected = {
        f'paceline_engine_page_gate_served_rows_total{{engine="0"}} {float(served)}',
        'paceline_engine_page_gate_active{engine="0",mode="AnyPage"} 1.0',
        f'paceline_engine_page_tokens{{engine="0"}} {float(MODEL_PAGE)}',
    }

    def shown() -> bool:
        return expected <= set(httpx.get(f"{gated.base_url}/metrics").text.splitlines())

    wait_for(shown, 60, f"/metrics shows {expected}")


def test_auto_leaves_the_page_to_vllm_where_our_kernel_is_slow(stock_answers: list[Completion], tmp_path: Path) -> None:
    with running(Launch(tmp_path, page_spec("Auto"), env={"PACELINE_KERNEL_LEVEL": "portable"})) as engine:
        answers, report = ask(engine), gate_report(engine)
    assert (report["mode"], report["active"], report["pageTokens"]) == ("Auto", True, STOCK_PAGE)
    assert report["pageReason"].startswith("NotMeasured: ")
    assert report["servedRows"] == 0
    # With AMX vLLM packs the cache of a page of 896 tokens, which is a reason of its own.
    assert "NotMeasured" in report["refused"]
    assert [first_difference(*pair) for pair in zip(answers, stock_answers, strict=True)] == [None] * len(PROMPTS)
