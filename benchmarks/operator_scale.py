"""The operator at 1,000 profiles with 4,000 engine pods, on a real API server and etcd.

Simulated: no kubelet; the pods' statuses are written as kubelet would, and one program answers for all engines.
Real: the API server, etcd, the operator's process as the chart starts it, and every request between them.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from _common import Target, arguments, report, versions
from _operator_load import IMPORTABLE, Load, Reading, choose, open_load, read_operator

from paceline.operator.config import WatchConfig

sys.path.insert(0, IMPORTABLE)

from oplab.api import profile_api
from oplab.engines import FakeEngines
from oplab.process import OperatorProcess, operator_process

from testbed import ApiServer
from testbed.folders import temporary_folder

REPLICAS = 4
SPACES = 10


def settled(status: dict) -> bool:
    return status.get("observedGeneration") == 1


def ready(status: dict) -> bool:
    return status.get("readyReplicas") == REPLICAS and all(pod["applied"] == "True" for pod in status["pods"])


async def hot_changes(load: Load, engines: FakeEngines, count: int) -> list[float]:
    """Change profiles one after another; return each change's seconds from the request to the last of its engines."""
    seconds = []
    for number, profile in enumerate(choose(load.profiles, count)):
        engines.forget_times()
        asked = await load.change_pacing(profile, 5 + number % 100)
        while len(times := engines.times()) < REPLICAS:
            if time.monotonic() > asked + 60:
                raise TimeoutError(f"{profile}: {len(times)} of {REPLICAS} engines after 60 s")
            await asyncio.sleep(0.002)
        seconds.append(max(times) - asked)
    return seconds


async def first_life(load: Load, engines: FakeEngines, operator: OperatorProcess, started: float) -> dict[str, float]:
    """Measure an operator that meets profiles without any object, and then their pods."""
    await load.wait_for(settled, "settled")
    figures = {"first_reconcile_of_new_profiles_seconds": time.monotonic() - started}
    reading = read_operator(operator.url, operator.process.pid)
    figures["api_calls_a_new_profile"] = reading.total_calls / len(load.profiles)
    await load.make_pods(engines.new_address)
    await load.wait_for(ready, "ready")
    return figures


async def second_life(
    load: Load, engines: FakeEngines, operator: OperatorProcess, started: float, quiet_seconds: float, changes: int
) -> dict[str, float]:
    """Measure an operator that starts where everything is there already."""
    epoch = 2
    await load.wait_for(lambda status: ready(status) and status["epoch"] == epoch, "claimed")
    figures = {"first_reconcile_after_restart_seconds": time.monotonic() - started}
    after: Reading = read_operator(operator.url, operator.process.pid)
    figures["api_calls_a_profile_after_restart"] = after.total_calls / len(load.profiles)
    await asyncio.sleep(2)
    before = read_operator(operator.url, operator.process.pid)
    await asyncio.sleep(quiet_seconds)
    later = read_operator(operator.url, operator.process.pid)
    minutes = (later.at - before.at) / 60
    figures["steady_api_calls_a_minute"] = (later.total_calls - before.total_calls) / minutes
    seconds = sorted(await hot_changes(load, engines, changes))
    figures["hot_change_p50_seconds"] = seconds[len(seconds) // 2]
    figures["hot_change_p99_seconds"] = seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))]
    last = read_operator(operator.url, operator.process.pid)
    figures["resident_mebibytes"], figures["peak_mebibytes"] = last.resident_mebibytes, last.peak_mebibytes
    return figures


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """Have an API server with addresses for more Services than the test cluster's own has."""
    with temporary_folder() as folder:
        server = ApiServer(folder, service_cidr="10.96.0.0/16")
        try:
            server.start()
            yield server
        finally:
            server.stop()


async def measure(quick: bool, folder: Path) -> dict[str, float]:
    """Run both lives of the operator and return the figures."""
    profiles = 50 if quick else 1_000
    with api_server() as server, profile_api(server), FakeEngines.serving() as engines:
        names = [(f"load-{index % SPACES}", f"profile-{index}") for index in range(profiles)]
        load = await open_load(server.kubeconfig, names, REPLICAS)
        await load.make_profiles()
        watch = WatchConfig().model_dump(by_alias=True)
        config = {"watch": watch, "lease": {"namespace": "default"}, "workers": 16}
        figures: dict[str, float] = {"profiles": profiles, "pods": profiles * REPLICAS}

        start = partial(
            operator_process, folder, server.kubeconfig, engines.port, "default", log_level="info", **config
        )
        started = time.monotonic()
        with start(identity="first") as operator:
            figures |= await first_life(load, engines, operator, started)
            operator.process.terminate()
            operator.process.wait(60)
        started = time.monotonic()
        with start(identity="second") as operator:
            figures |= await second_life(load, engines, operator, started, 20 if quick else 120, 20 if quick else 50)
        await load.client.close()
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> int:
    options = arguments(__doc__, "  benchmarks/operator_scale.py --quick").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(options.quick, Path(folder)))
    return report(
        "operator_scale",
        versions("kubernetes", "pydantic", "aiohttp"),
        figures,
        {
            "memory below 250 MiB": Target(250, figures["peak_mebibytes"]),
            "a hot change among them below 1 s (p99)": Target(1.0, figures["hot_change_p99_seconds"]),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
