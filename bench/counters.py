"""The engine's own counters, read from its Prometheus page before and after: what moved, and whether it can be told.

A page holds one series for each engine core (label `engine`); what an experiment wants is their sum. A counter that
went backwards, or whose creation time moved, belongs to another process than the one read before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from paceline.bench.records import CounterDelta

PREEMPTIONS: Final = "vllm:num_preemptions"
CACHE_QUERIES: Final = "vllm:prefix_cache_queries"
CACHE_HITS: Final = "vllm:prefix_cache_hits"
PROMPT_TOKENS: Final = "vllm:prompt_tokens"
GENERATION_TOKENS: Final = "vllm:generation_tokens"
QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
PREFILL_TIME: Final = "vllm:request_prefill_time_seconds"
RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
CACHE_CONFIG: Final = "vllm:cache_config_info"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Page:
    """One reading of the metrics page: each sample by its name and labels."""

    samples: Mapping[tuple[str, Labels], float]

    def total(self, name: str) -> float | None:
        """Return the sum of a sample over all its labels; None where the engine does not have it."""
        values = [value for (sample, _), value in self.samples.items() if sample == name]
        return sum(values) if values else None

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of the first series of a sample; empty where the engine does not have it."""
        return next((dict(labels) for sample, labels in self.samples if sample == name), {})


def parse_page(text: str) -> Page:
    """Read a metrics page in Prometheus' text format; raises ValueError where it is none."""
    return Page(
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


def moved(before: Page, after: Page, counter: str) -> float | None:
    """Return how far a counter moved between two pages, over all engine cores; None where it is not counted.

    `counter` is a counter's name without `_total`, or a histogram's with `_sum` or `_count`.
    """
    name = counter if counter.endswith(("_sum", "_count")) else counter + "_total"
    start, end = before.total(name), after.total(name)
    return None if end is None else end - (start or 0.0)


def was_reset(before: Page, after: Page) -> bool:
    """Tell whether a counter of the engine started anew between two pages."""
    for (name, labels), value in before.samples.items():
        if not name.startswith("vllm:"):
            continue
        later = after.samples.get((name, labels))
        if name.endswith("_created") and later is not None and later != value:
            return True
        if name.endswith(("_total", "_count")) and (later is None or later < value):
            return True
    return False


def counter_delta(before: Page, after: Page) -> CounterDelta:
    """Return what the counters that audits use moved by."""
    return CounterDelta(
        reset=was_reset(before, after),
        preemptions=moved(before, after, PREEMPTIONS),
        prefix_cache_queries=moved(before, after, CACHE_QUERIES),
        prefix_cache_hits=moved(before, after, CACHE_HITS),
        prompt_tokens=moved(before, after, PROMPT_TOKENS),
        generation_tokens=moved(before, after, GENERATION_TOKENS),
    )
