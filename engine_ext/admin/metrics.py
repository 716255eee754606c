"""The step counters as Prometheus metrics, in the registry that vLLM's own `/metrics` serves."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.engine_ext.admin.monitor import Monitor
from paceline.engine_ext.page_gate.metrics import page_gate_metrics
from paceline.engine_ext.telemetry.steps import StepKind

PER_KIND = (
    ("steps", "paceline_engine_steps", "Engine steps by what they computed."),
    ("tokens", "paceline_engine_step_tokens", "Tokens computed, by kind of step."),
    ("seconds", "paceline_engine_step_seconds", "Seconds spent in steps, by kind of step."),
)
TOTALS = (
    ("deferredPrefillSteps", "paceline_engine_deferred_prefill_steps", "Steps in which pacing held a prefill."),
    ("preemptions", "paceline_engine_preemptions", "Requests preempted under cache pressure."),
    ("settingsChanges", "paceline_engine_settings_changes", "Live settings taken over."),
)
COALESCING = (
    ("plannedSpans", "paceline_engine_coalesced_spans", "Spans that ran in one pass."),
    ("plannedTokens", "paceline_engine_coalesced_tokens", "Tokens of spans that ran in one pass."),
    ("exportedStates", "paceline_engine_exported_states", "Recurrent states kept on the way, each in every layer."),
)
PROMISE = (
    ("residentsKept", "resident", "kept"),
    ("residentsBroken", "resident", "broken"),
    ("prefillsKept", "prefill", "kept"),
    ("prefillsBroken", "prefill", "broken"),
)


@dataclass(eq=False)
class EngineCollector(Collector):
    """Reads what the monitor saw last: a scrape must not wait for an engine step."""

    monitor: Monitor

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of every engine core, labelled with its rank."""
        states = list(self.monitor.states.values())
        yield from _per_kind(states)
        for key, name, text in TOTALS:
            total = CounterMetricFamily(name, text, labels=["engine"])
            for state in states:
                total.add_metric([str(state["engine"])], state["counters"].get(key, 0))
            yield total
        yield from _pacing(states)
        yield from _coalescing(states)
        yield from page_gate_metrics(states)


def _per_kind(states: list[dict[str, Any]]) -> Iterator[Metric]:
    for key, name, text in PER_KIND:
        family = CounterMetricFamily(name, text, labels=["engine", "kind"])
        for state in states:
            for kind in StepKind:
                sums = state["counters"].get(kind.value)
                if sums is not None:
                    family.add_metric([str(state["engine"]), kind.value], sums[key])
        yield family


def _pacing(states: Iterable[dict[str, Any]]) -> Iterator[Metric]:
    paced = GaugeMetricFamily("paceline_engine_paced", "1 while prefills are paced.", labels=["engine"])
    obstacles = GaugeMetricFamily(
        "paceline_engine_pacing_obstacles", "Reasons why this engine can't be paced.", labels=["engine"]
    )
    revision = GaugeMetricFamily("paceline_engine_revision", "Revision of the running settings.", labels=["engine"])
    interval = GaugeMetricFamily("paceline_engine_interval_steps", "The fixed pacing interval.", labels=["engine"])
    slack = GaugeMetricFamily(
        "paceline_engine_slack_seconds", "Smallest slack of a resident at the last decision.", labels=["engine"]
    )
    promise = CounterMetricFamily(
        "paceline_engine_promises", "Requests by whether their promise was kept.", labels=["engine", "role", "outcome"]
    )
    for state in states:
        engine, report = str(state["engine"]), state["pacing"]
        paced.add_metric([engine], int(state["paced"]))
        obstacles.add_metric([engine], len(state["reasons"]))
        revision.add_metric([engine], state["revision"])
        interval.add_metric([engine], report.get("intervalSteps", 1))
        if report.get("slackSeconds") is not None:
            slack.add_metric([engine], report["slackSeconds"])
        for key, role, outcome in PROMISE:
            if key in report:
                promise.add_metric([engine, role, outcome], report[key])
    yield from (paced, obstacles, revision, interval, slack, promise)


def _coalescing(states: Iterable[dict[str, Any]]) -> Iterator[Metric]:
    families = {key: CounterMetricFamily(name, text, labels=["engine"]) for key, name, text in COALESCING}
    refused = CounterMetricFamily(
        "paceline_engine_uncoalesced_spans", "Spans split as usual, by reason.", labels=["engine", "reason"]
    )
    for state in states:
        engine, counters = str(state["engine"]), state["counters"].get("coalescing")
        if counters is None:
            continue
        for key, family in families.items():
            family.add_metric([engine], counters[key])
        for reason, count in counters["notPlanned"].items():
            refused.add_metric([engine, reason], count)
    yield from (*families.values(), refused)
