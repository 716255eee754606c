"""A change of pacing on a real cluster: from `kubectl patch`'s request to the engine's own word that it runs it.

Real: API server, etcd, controllers, kubelet, the chart's operator, and vLLM on CPU in a pod; idle, and with prompts of
thousands of tokens being prefilled. Needs root, as every test cluster with a node does.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from _common import Target, arguments, report, spread, versions
from _operator_load import IMPORTABLE

from paceline.operator.kube.resources import PROFILES

sys.path.insert(0, IMPORTABLE)

from oplab import Api
from oplab.served import NAME, SPACE, Served

from testbed import Cluster
from testbed.paceline import Images, chart_values, install, node_mounts

PROMPT_TOKENS = 6_000
LONGEST_SECONDS = 60


def timed_changes(served: Served, api: Api, count: int, first: int) -> list[float]:
    """Change the interval `count` times; return the seconds until the engine ran each change."""
    address, token = served.admin_access()
    seconds = []
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=30) as client:
        for number in range(count):
            interval = first + number
            asked = time.monotonic()
            api.merge(PROFILES, SPACE, NAME, {"spec": {"pacing": {"mode": "Fixed", "interval": interval}}})
            while client.get(address).json()["settings"]["pacing"].get("interval") != interval:
                if time.monotonic() > asked + LONGEST_SECONDS:
                    raise TimeoutError(f"the engine does not run interval {interval} after {LONGEST_SECONDS} s")
                time.sleep(0.005)
            seconds.append(time.monotonic() - asked)
    return seconds


@contextmanager
def prefilling(served: Served) -> Iterator[None]:
    """Have the engine prefill one long prompt after another within the block."""
    end = threading.Event()
    url = f"http://{served.service_address()}/v1/completions"

    def work() -> None:
        number = 0
        with httpx.Client(trust_env=False, timeout=600) as client:
            while not end.is_set():
                number += 1
                # Never the same beginning: the prefix cache would spare the prefill.
                prompt = f"{number} " + "a" * PROMPT_TOKENS
                client.post(url, json={"model": "tiny", "prompt": prompt, "max_tokens": 1}).raise_for_status()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def main() -> int:
    options = arguments(__doc__, "  benchmarks/hot_change_cluster.py --quick").parse_args()
    count = 10 if options.quick else 50
    images = Images.build()
    with Cluster.running(node_mounts()) as cluster:
        images.load(cluster)
        install(cluster, chart_values(images))
        served = Served.apply(cluster)
        api = Api(cluster.api.kubeconfig, cluster.api.ca_file)
        before = served.identity()
        idle = timed_changes(served, api, count, first=2)
        with prefilling(served):
            busy = timed_changes(served, api, count, first=200)
        restarted = served.identity() != before
        api.close()
    figures = {
        "idle_seconds": spread(idle) | {"p99": _p99(idle)},
        "during_prefill_seconds": spread(busy) | {"p99": _p99(busy)},
        "changes": 2 * count,
        "pods_restarted": int(restarted),
    }
    return report(
        "hot_change_cluster",
        versions("kubernetes", "aiohttp"),
        figures,
        {
            "a hot change in under 1 s (p99, idle)": Target(1.0, _p99(idle)),
            "a hot change in under 1 s (p99, during a prefill)": Target(1.0, _p99(busy)),
            "no pod restarted": Target(0, int(restarted)),
        },
    )


def _p99(seconds: list[float]) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 4)


if __name__ == "__main__":
    sys.exit(main())
