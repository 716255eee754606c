"""The Grafana dashboard asks for metrics and labels that Paceline and vLLM really expose, in valid PromQL."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
from prometheus_client.metrics import MetricWrapperBase

from paceline.control_api.metrics import Metrics
from paceline.engine_ext.admin.metrics import EngineCollector
from paceline.engine_ext.telemetry.steps import StepLog
from paceline.operator import metrics as operator_metrics

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "charts" / "paceline" / "dashboards" / "paceline.json").read_text(encoding="utf-8")
)
SCRAPED = {"namespace", "pod"}
"""Labels that Prometheus adds to what an engine's pod exposes."""
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def engine_metrics() -> dict[str, set[str]]:
    """Names of the engine's samples, with their labels: from reports of both modes."""
    counters = {
        **StepLog().counters(),
        "coalescing": {"plannedSpans": 1, "plannedTokens": 1, "exportedStates": 1, "notPlanned": {"Short": 1}},
    }
    promise = {"slackSeconds": 0.1, "residentsKept": 1, "residentsBroken": 0, "prefillsKept": 1, "prefillsBroken": 0}
    gate = {"mode": "AnyPage", "active": True, "pageTokens": 784, "served": 3, "servedRows": 9, "refused": {"Sinks": 1}}
    state = {"engine": 0, "paced": True, "reasons": [], "revision": 1}
    state |= {"counters": counters, "pacing": promise, "pageGate": gate}
    collector = EngineCollector(SimpleNamespace(states={0: state}))
    return {sample.name: set(sample.labels) for family in collector.collect() for sample in family.samples}


def own_metrics(holder: object) -> dict[str, set[str]]:
    """Names of the samples that the metrics among an object's attributes make, with their labels."""
    found = {}
    for metric in vars(holder).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            for suffix in SUFFIXES[family.type]:
                labels = {*metric._labelnames, *(["le"] if suffix == "_bucket" else [])}
                found[family.name + suffix] = labels
    return found


# tests/contract/test_dashboard.py holds these against vLLM's own definitions.
VLLM = {
    "vllm:time_to_first_token_seconds_bucket": {"le"},
    "vllm:inter_token_latency_seconds_bucket": {"le"},
    "vllm:num_requests_running": set(),
    "vllm:num_requests_waiting": set(),
    "vllm:kv_cache_usage_perc": set(),
}
EXPOSED: dict[str, set[str]] = {
    **engine_metrics(),
    **own_metrics(Metrics()),
    **own_metrics(operator_metrics),
    **VLLM,
}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"]["query"])
            assert match is not None
            yield match[1]


def parsed(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def parts(node: Any) -> Iterator[Any]:
    """Yield every node of an expression."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str | float):
            yield from parts(child)
    for child in getattr(node, "args", None) or ():
        yield from parts(child)


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_query_names_metrics_and_labels_that_exist(expression: str) -> None:
    nodes = list(parts(parsed(expression)))
    selectors = [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
    assert selectors
    known: set[str] = set()
    for selector in selectors:
        assert selector.name in EXPOSED
        known |= EXPOSED[selector.name] | SCRAPED
        for matcher in selector.matchers.matchers:
            assert matcher.name in EXPOSED[selector.name] | SCRAPED
    for node in nodes:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= known


def test_every_metric_of_the_engines_pacing_is_shown() -> None:
    asked = {
        node.name
        for expression in expressions()
        for node in parts(parsed(expression))
        if isinstance(node, promql_parser.VectorSelector)
    }
    pacing = {
        "paceline_engine_steps_total",
        "paceline_engine_step_tokens_total",
        "paceline_engine_step_seconds_total",
        "paceline_engine_deferred_prefill_steps_total",
        "paceline_engine_interval_steps",
        "paceline_engine_pacing_obstacles",
        "paceline_engine_slack_seconds",
        "paceline_engine_promises_total",
    }
    assert pacing <= asked


def test_panels_lie_beside_each_other_and_have_a_source() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", ()))
