"""Whole requests on engines of every mode of the page gate, side by side, asked by turns."""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
from _common import Target, spread
from _engine import BenchmarkEngine, example_spec, running_engine
from instructions import InstructionSet, engine_environment

from paceline.operator.api.v1alpha1 import InferenceProfileSpec

MODES: Final = ("Disabled", "AnyPage", "Auto")
PROMPT, OUTPUT = 8_192, 256
PARTS: Final = ("prefill", "decode", "total")
# One thread computes; the machine's other core serves the API, so that threads don't wait for one another.
THREADS: Final = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def _spec(mode: str) -> InferenceProfileSpec:
    spec = example_spec("cpu-page-gate.yaml", "page_model.sh")
    return InferenceProfileSpec.model_validate(spec | {"pageGate": {"mode": mode}})


def _ask(client: httpx.Client, engine: BenchmarkEngine, seed: int) -> dict[str, float]:
    """Stream one greedy request of random tokens and return its seconds: to the first token, from there on, in all."""
    body = {
        "model": "tiny",
        "prompt": random.Random(seed).choices(range(256), k=PROMPT),
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    start, times = time.perf_counter(), []
    with client.stream("POST", f"{engine.address.url}/v1/completions", json=body) as response:
        response.raise_for_status()
        times = [time.perf_counter() for line in response.iter_lines() if line.startswith("data: {")]
    return {"prefill": times[0] - start, "decode": times[-1] - times[0], "total": times[-1] - start}


def _gate(client: httpx.Client, engine: BenchmarkEngine) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {engine.address.admin_token}"}
    return dict(client.get(f"{engine.address.admin_url}/paceline/v1/settings", headers=headers).json()["pageGate"][0])


def measure_requests(instructions: InstructionSet, requests: int) -> dict[str, Any]:
    """Ask every engine `requests` times, after one request to warm up; seconds by mode, and ratios of each turn.

    A ratio is the time with the gate off over the time in the mode.
    """
    seconds: dict[str, dict[str, list[float]]] = {mode: {part: [] for part in PARTS} for mode in MODES}
    with TemporaryDirectory() as folder, httpx.Client(timeout=3_600, trust_env=False) as client, ExitStack() as stack:
        engines = {}
        for mode in MODES:
            env = THREADS | engine_environment(instructions)
            engines[mode] = stack.enter_context(running_engine(_spec(mode), Path(folder) / mode, env=env))
        for number in range(-1, requests):
            for mode in MODES[:: 1 if number % 2 == 0 else -1]:
                one = _ask(client, engines[mode], seed=number + 1)
                print(f"{instructions} {mode}: {one}", flush=True)
                for part in PARTS if number >= 0 else ():
                    seconds[mode][part].append(one[part])
        gates = {mode: _gate(client, engine) for mode, engine in engines.items()}
    ratios = {
        mode: {
            part: spread([a / b for a, b in zip(seconds["Disabled"][part], seconds[mode][part], strict=True)])
            for part in PARTS
        }
        for mode in MODES[1:]
    }
    return {
        "instructions": instructions,
        "promptTokens": PROMPT,
        "outputTokens": OUTPUT,
        "gate": gates,
        "seconds": {mode: {part: spread(values) for part, values in parts.items()} for mode, parts in seconds.items()},
        "ratios": ratios,
    }


def targets(figures: dict[str, Any]) -> dict[str, Target]:
    """Auto must take the faster page; within the spread of equals either will do."""
    fastest = max(1.0, figures["ratios"]["AnyPage"]["total"]["median"])
    auto = figures["ratios"]["Auto"]["total"]["median"]
    found = {"whole request: speed in mode Auto / in the faster of both": Target(0.97, auto / fastest, at_least=True)}
    for part, ratio in figures["ratios"]["AnyPage"].items():
        found[f"{part}: time on vLLM's page / on the model's"] = Target(1.0, ratio["median"], at_least=True)
    return found
