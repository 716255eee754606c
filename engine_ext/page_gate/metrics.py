"""The page gate's counters as Prometheus metrics."""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def page_gate_metrics(states: Iterable[dict[str, Any]]) -> Iterator[Metric]:
    """Yield the gate's metrics of every engine core, labelled with its rank; `states` as `utility.state` answers."""
    active = GaugeMetricFamily(
        "paceline_engine_page_gate_active", "1 while the page gate takes what qualifies.", labels=["engine", "mode"]
    )
    page = GaugeMetricFamily("paceline_engine_page_tokens", "Tokens in a page of the cache.", labels=["engine"])
    served = CounterMetricFamily(
        "paceline_engine_page_gate_served_calls", "Attention calls that our kernel served.", labels=["engine"]
    )
    rows = CounterMetricFamily(
        "paceline_engine_page_gate_served_rows", "Query rows that our kernel served.", labels=["engine"]
    )
    refused = CounterMetricFamily(
        "paceline_engine_page_gate_refused_calls",
        "Attention calls left to the engine's own kernel, by reason.",
        labels=["engine", "reason"],
    )
    for state in states:
        engine, gate = str(state["engine"]), state["pageGate"]
        active.add_metric([engine, gate["mode"]], int(gate["active"]))
        page.add_metric([engine], gate["pageTokens"])
        served.add_metric([engine], gate["served"])
        rows.add_metric([engine], gate["servedRows"])
        for reason, count in gate["refused"].items():
            refused.add_metric([engine, reason], count)
    yield from (active, page, served, rows, refused)
