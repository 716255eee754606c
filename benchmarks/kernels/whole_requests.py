"""Whole requests with the page gate on and off: two engines side by side, asked by turns."""

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import torch
from _common import ROOT, spread
from _engine import BenchmarkEngine, running_engine

from paceline.operator.api.v1alpha1 import InferenceProfileSpec

MODES: Final = ("Disabled", "AnyPage")
PROMPT, OUTPUT = 8_192, 256
PARTS: Final = ("ttft", "decode", "total")


def _spec(mode: str) -> InferenceProfileSpec:
    model = subprocess.run(
        ["bash", "scripts/page_model.sh"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()[-1]
    return InferenceProfileSpec.model_validate(
        {
            "model": {"source": f"file://{model}", "maxModelLen": PROMPT + OUTPUT + 64},
            "engine": {
                "accelerator": "CPU",
                "maxNumBatchedTokens": 2_048,
                "kvCache": {"sizeGibibytes": 1},
                "extraArgs": ["--enforce-eager", "--mamba-ssm-cache-dtype", "float32"],
            },
            "pageGate": {"mode": mode},
        }
    )


def _ask(client: httpx.Client, engine: BenchmarkEngine, seed: int) -> dict[str, float]:
    url = engine.address.url
    model = client.get(f"{url}/v1/models").json()["data"][0]["id"]
    prompt = torch.randint(0, 256, (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()
    body = {"model": model, "prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True, "stream": True}
    start, times = time.perf_counter(), []
    with client.stream("POST", f"{url}/v1/completions", json=body | {"temperature": 0}) as response:
        response.raise_for_status()
        times = [time.perf_counter() for line in response.iter_lines() if line.startswith("data: {")]
    return {"ttft": times[0] - start, "decode": times[-1] - times[0], "total": times[-1] - start}


def _gate(client: httpx.Client, engine: BenchmarkEngine) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {engine.address.admin_token}"}
    return dict(client.get(f"{engine.address.admin_url}/paceline/v1/settings", headers=headers).json()["pageGate"][0])


def measure_requests(requests: int) -> dict[str, Any]:
    """Ask both engines `requests` times after one request to warm up; seconds by mode, and ratios of each pair."""
    seconds: dict[str, dict[str, list[float]]] = {mode: {part: [] for part in PARTS} for mode in MODES}
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2"}
    with TemporaryDirectory() as folder, httpx.Client(timeout=3_600, trust_env=False) as client, ExitStack() as stack:
        engines = {}
        for mode in MODES:
            home = Path(folder) / mode
            home.mkdir()
            engines[mode] = stack.enter_context(running_engine(_spec(mode), home, env=threads))
        for number in range(-1, requests):
            for mode in MODES[:: 1 if number % 2 == 0 else -1]:
                one = _ask(client, engines[mode], seed=number + 1)
                print(f"{mode}: {one}", flush=True)
                for part in PARTS if number >= 0 else ():
                    seconds[mode][part].append(one[part])
        gates = {mode: _gate(client, engine) for mode, engine in engines.items()}
    ratios = {
        part: [a / b for a, b in zip(seconds["Disabled"][part], seconds["AnyPage"][part], strict=True)]
        for part in PARTS
    }
    return {
        "promptTokens": PROMPT,
        "outputTokens": OUTPUT,
        "gate": gates,
        "seconds": {mode: {part: spread(values) for part, values in parts.items()} for mode, parts in seconds.items()},
        "ratios": {part: spread(values) for part, values in ratios.items()},
    }
