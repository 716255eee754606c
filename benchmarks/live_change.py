"""How long a change of the live settings takes on a busy engine, beside the step that runs when it arrives.

A real engine on CPU with the tiny model. Two residents decode throughout. Changes are sent at random moments, first
beside decode steps, then while a long unpaced prefill runs. A change is taken over between two steps, so it waits for
the step that runs; `excess` is what its answer took beyond that step.
"""

import asyncio
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "engine")]
from _common import Target, arguments, report, spread, versions  # noqa: E402
from completions import body, complete, prompt  # noqa: E402
from engine_process import Engine, Launch, running, tiny_spec  # noqa: E402

MAX_EXCESS_SECONDS = 0.020
SETTINGS, STEPS = "/paceline/v1/settings", "/paceline/v1/steps"


class Load:
    """Requests that stream in a thread of their own while the main thread sends changes."""

    def __init__(self, engine: Engine, residents: int) -> None:
        self.url = engine.base_url
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.residents = [self.send(prompt(64, seed), 20_000) for seed in range(residents)]

    def send(self, tokens: list[int], max_tokens: int) -> Any:
        """Start a request and return its future."""
        return asyncio.run_coroutine_threadsafe(self._complete(tokens, max_tokens), self.loop)

    async def _complete(self, tokens: list[int], max_tokens: int) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=None) as client:
            await complete(client, body(tokens, max_tokens, "load"))

    def stop(self) -> None:
        """Drop the residents' streams."""
        for future in self.residents:
            future.cancel()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class Changer:
    """Sends changes one after the other and notes how long each took."""

    def __init__(self, admin: httpx.Client) -> None:
        self.admin = admin
        self.revision = admin.get(SETTINGS).json()["settings"]["revision"]
        self.random = random.Random(7)

    def change(self) -> tuple[float, int]:
        """Change the interval; return the seconds until the answer, and the number of the step that ran meanwhile."""
        self.revision += 1
        pacing = {"mode": "Disabled", "interval": 2 + self.revision % 7}
        start = time.perf_counter()
        answer = self.admin.put(SETTINGS, json={"epoch": 0, "revision": self.revision, "pacing": pacing})
        seconds = time.perf_counter() - start
        answer.raise_for_status()
        return seconds, answer.json()["engines"][0]["step"]

    def pause(self, longest_seconds: float) -> None:
        """Wait for a random while, so that changes come at any moment of a step."""
        time.sleep(self.random.uniform(0, longest_seconds))

    def durations(self, after: int) -> dict[int, float]:
        """Return the duration of each step after step `after`."""
        records = self.admin.get(STEPS, params={"after": after, "limit": 1_000}).json()["records"]
        return {record["step"]: record["durationSeconds"] for record in records}


def judge(changer: Changer, changes: list[tuple[float, int]]) -> dict[str, Any]:
    """Hold each change's time against the step that it waited for."""
    durations = changer.durations(min(step for _, step in changes) - 1)
    excess = sorted(seconds - durations[step] for seconds, step in changes)
    return {
        "answer_seconds": spread([seconds for seconds, _ in changes]),
        "step_seconds": spread([durations[step] for _, step in changes]),
        "excess_seconds": spread(excess),
        "excess_p95_seconds": round(excess[int(0.95 * (len(excess) - 1))], 6),
        "excess_max_seconds": round(excess[-1], 6),
    }


def measure(engine: Engine, changes: int, prompt_tokens: int) -> dict[str, Any]:
    """Measure idle, beside decode steps, and beside a prefill."""
    with engine.admin() as admin:
        changer = Changer(admin)
        idle = [changer.change()[0] for _ in range(changes)]
        load = Load(engine, residents=2)
        while len(changer.durations(0)) < 20:
            changer.pause(0.2)
        decoding = []
        for _ in range(changes):
            changer.pause(0.05)
            decoding.append(changer.change())
        beside_decodes = judge(changer, decoding)
        injected, prefilling = load.send(prompt(prompt_tokens, 99), 1), []
        while not injected.done():
            prefilling.append(changer.change())
            changer.pause(0.3)
        beside_prefill = judge(changer, prefilling)
        load.stop()
    return {"idle_seconds": spread(idle), "beside_decodes": beside_decodes, "beside_prefill": beside_prefill}


def main() -> int:
    parser = arguments(__doc__, "  benchmarks/live_change.py\n  benchmarks/live_change.py --quick")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder, running(Launch(Path(folder), tiny_spec())) as engine:
        figures = measure(engine, 30 if quick else 200, 8_000 if quick else 30_000)
    targets = {
        f"seconds beyond the running step, {what.replace('_', ' ')}, 95th percentile": Target(
            MAX_EXCESS_SECONDS, figures[what]["excess_p95_seconds"]
        )
        for what in ("beside_decodes", "beside_prefill")
    }
    return report("live_change", versions("paceline", "httpx") | {"vllm": "0.32.0 (CPU)"}, figures, targets)


if __name__ == "__main__":
    sys.exit(main())
