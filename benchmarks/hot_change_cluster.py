"""A change of pacing on a real cluster: from the request that patches the profile to the engine's word that it runs it.

Real: API server, etcd, controllers, kubelet, the chart's operator, and vLLM on CPU in a pod; idle, and with prompts of
thousands of tokens being prefilled. `kubectl` adds the time of its own process, which is measured beside. Needs root,
as every test cluster with a node does.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
from _common import Target, arguments, report, spread, versions
from _operator_load import IMPORTABLE

from paceline.operator.kube.resources import PROFILES

sys.path.insert(0, IMPORTABLE)

from oplab import Api
from oplab.served import NAME, SPACE, Served, p99

from testbed import Cluster
from testbed.paceline import Images, chart_values, install, node_mounts

PROMPT_TOKENS = 6_000
LIMIT_SECONDS = 1.0


def merge(api: Api, spec: dict[str, Any]) -> None:
    """Patch the profile in one request, as any client of the API server does."""
    api.merge(PROFILES, SPACE, NAME, {"spec": spec})


@contextmanager
def prefilling(served: Served) -> Iterator[None]:
    """Have the engine prefill one long prompt after another within the block."""
    end, url = threading.Event(), f"{served.url()}/v1/completions"

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


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return the spread of times with their 99th percentile and their greatest."""
    return spread(seconds) | {"p99": round(p99(seconds), 6), "max": round(max(seconds), 6)}


def main() -> int:
    options = arguments(__doc__, "  benchmarks/hot_change_cluster.py --quick").parse_args()
    count = 10 if options.quick else 50
    images = Images.build()
    with Cluster.running(node_mounts()) as cluster:
        images.load(cluster)
        install(cluster, chart_values(images))
        served = Served.apply(cluster)
        api = Api(cluster.api.kubeconfig, cluster.api.ca_file)
        before, change = served.identity(), partial(merge, api)
        idle = served.timed_changes(range(2, 2 + count), change)
        by_kubectl = served.timed_changes(range(200, 200 + count))
        with prefilling(served):
            busy = served.timed_changes(range(400, 400 + count), change)
        restarted = int(served.identity() != before)
        api.close()
    measured = {"idle": idle, "idle_by_kubectl": by_kubectl, "during_prefill": busy}
    figures: dict[str, Any] = {f"{name}_seconds": summary(seconds) for name, seconds in measured.items()}
    return report(
        "hot_change_cluster",
        versions("kubernetes", "aiohttp"),
        figures | {"changes": 3 * count, "pods_restarted": restarted},
        {
            "seconds of a hot change, idle, p99": Target(LIMIT_SECONDS, p99(idle)),
            "seconds of a hot change, idle, with kubectl's own time, p99": Target(LIMIT_SECONDS, p99(by_kubectl)),
            "seconds of a hot change, during a prefill, p99": Target(LIMIT_SECONDS, p99(busy)),
            "pods restarted": Target(0, restarted),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
