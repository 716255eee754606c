"""The conditions of a profile, each from the same facts. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.status import ConditionType
from paceline.operator.engines import EngineReport
from paceline.operator.pods import PodView
from paceline.operator.troubles import Trouble, trouble_of

Truth = Literal["True", "False", "Unknown"]
_MOST_NAMED: Final = 5


@dataclass(frozen=True)
class Finding:
    """A condition without its times."""

    type: ConditionType
    status: Truth
    reason: str
    message: str


@dataclass(frozen=True)
class Facts:
    """What conditions are found from. `pods` are the profile's engines, those leaving excluded.

    `template` is the hash of the template that new pods get; `rolling_update` tells whether a rollout starts new
    engines before it stops old ones.
    """

    replicas: int
    settings: LiveSettings
    template: str = ""
    pods: Sequence[PodView] = ()
    reports: Mapping[str, EngineReport] = field(default_factory=dict)
    workload_failure: Trouble | None = None
    refused: Trouble | None = None
    rolling_update: bool = False

    @property
    def serving(self) -> list[PodView]:
        """The pods that answer requests."""
        return [pod for pod in self.pods if pod.serves]

    @property
    def ready(self) -> list[PodView]:
        """The pods that serve now."""
        return [pod for pod in self.serving if pod.ready]

    @property
    def outdated(self) -> list[PodView]:
        """The pods that a rollout still has to replace."""
        return [pod for pod in self.serving if pod.template != self.template]

    @property
    def troubles(self) -> list[Trouble]:
        """Why pods don't serve, faults before those that are just starting."""
        found = [trouble for pod in self.pods if (trouble := trouble_of(pod)) is not None]
        if self.workload_failure is not None:
            found.insert(0, self.workload_failure)
        return sorted(found, key=lambda trouble: not trouble.is_fault)

    @property
    def lagging(self) -> list[PodView]:
        """The running pods that don't run the profile's revision."""
        return [
            pod for pod in self.serving if pod.container.started and not is_applied(self.report(pod), self.settings)
        ]

    @property
    def pending_reason(self) -> str:
        """Why settings are not on every engine: still on their way, or refused by one that can't run them."""
        reports = [self.report(pod) for pod in self.lagging]
        return (
            "SettingsRefused" if any(report is not None and report.refused for report in reports) else "SettingsPending"
        )

    def report(self, pod: PodView) -> EngineReport | None:
        """Return what the pod's engine said last."""
        return self.reports.get(pod.name)


def is_applied(report: EngineReport | None, settings: LiveSettings) -> bool:
    """Tell whether an engine runs the revision; its epoch may be an earlier leader's, the knobs are the same."""
    return (
        report is not None
        and report.settings is not None
        and not report.behind
        and report.settings.revision == settings.revision
        and report.settings.same_knobs(settings)
    )


def find_conditions(facts: Facts) -> list[Finding]:
    """Return all conditions of a profile."""
    return [finder(facts) for finder in _FINDERS]


def _ready(facts: Facts) -> Finding:
    kind = ConditionType.READY
    if facts.refused is not None:
        return Finding(kind, "False", facts.refused.reason, facts.refused.message)
    if facts.replicas == 0:
        return Finding(kind, "False", "ScaledToZero", "spec.engine.replicas is 0; scale the profile up to serve")
    if facts.troubles:
        return Finding(kind, "False", facts.troubles[0].reason, _told(facts.troubles))
    if facts.outdated or len(facts.ready) < facts.replicas:
        return Finding(kind, "False", "RollingOut", _rollout_message(facts))
    if facts.lagging:
        return Finding(kind, "False", facts.pending_reason, _lagging_message(facts))
    return Finding(kind, "True", "Ready", f"{len(facts.ready)} of {facts.replicas} engines serve")


def _available(facts: Facts) -> Finding:
    count = len(facts.ready)
    if count:
        return Finding(ConditionType.AVAILABLE, "True", "EngineReady", f"{count} of {facts.replicas} engines serve")
    return Finding(ConditionType.AVAILABLE, "False", "NoEngineReady", "no engine serves")


def _progressing(facts: Facts) -> Finding:
    kind = ConditionType.PROGRESSING
    if facts.refused is not None:
        return Finding(kind, "False", facts.refused.reason, facts.refused.message)
    faults = [trouble for trouble in facts.troubles if trouble.is_fault]
    if faults:
        stuck = facts.rolling_update and facts.outdated and faults[0].reason == "Unschedulable"
        hint = (
            "; a RollingUpdate needs room for one more engine: free some, or set rollout.strategy to Recreate"
            if stuck
            else ""
        )
        return Finding(kind, "False", faults[0].reason, _told(faults) + hint)
    if facts.outdated or len(facts.serving) != facts.replicas or len(facts.ready) < facts.replicas:
        return Finding(kind, "True", "RollingOut", _rollout_message(facts))
    return Finding(kind, "False", "Complete", "every engine is of the current template and serves")


def _config_applied(facts: Facts) -> Finding:
    kind = ConditionType.CONFIG_APPLIED
    running = [pod for pod in facts.serving if pod.container.started]
    if facts.lagging:
        return Finding(kind, "False", facts.pending_reason, _lagging_message(facts))
    if not running:
        return Finding(kind, "Unknown", "NoEngine", "no engine runs; the next one starts with the settings")
    revision = facts.settings.revision
    return Finding(kind, "True", "Applied", f"every running engine runs revision {revision}")


def _scheduled(facts: Facts) -> Finding:
    kind = ConditionType.SCHEDULED
    if facts.workload_failure is not None:
        return Finding(kind, "False", facts.workload_failure.reason, facts.workload_failure.message)
    waiting = [pod for pod in facts.pods if pod.unscheduled_reason]
    if waiting:
        told = "; ".join(f"{pod.name}: {pod.unscheduled_message}" for pod in waiting[:_MOST_NAMED])
        return Finding(kind, "False", waiting[0].unscheduled_reason, told)
    if not facts.pods:
        return Finding(kind, "Unknown", "NoPods", "there are no engine pods")
    if all(pod.node for pod in facts.pods):
        return Finding(kind, "True", "Scheduled", "every engine pod has a node")
    return Finding(kind, "Unknown", "Scheduling", "an engine pod waits for the scheduler")


def _model_loaded(facts: Facts) -> Finding:
    kind = ConditionType.MODEL_LOADED
    if facts.ready and not facts.troubles:
        return Finding(kind, "True", "Loaded", f"{len(facts.ready)} of {facts.replicas} engines have loaded the model")
    if facts.troubles:
        return Finding(kind, "False", facts.troubles[0].reason, _told(facts.troubles))
    return Finding(kind, "Unknown", "NoEngine", "no engine runs")


def _engine_compatible(facts: Facts) -> Finding:
    kind = ConditionType.ENGINE_COMPATIBLE
    told = [(pod, report) for pod in facts.serving if (report := facts.report(pod)) is not None and report.settings]
    odd = [f"{pod.name}: {', '.join(report.reasons) or 'no reason'}" for pod, report in told if not report.compatible]
    if odd:
        return Finding(kind, "False", "EngineIncompatible", f"served unpaced: {'; '.join(odd[:_MOST_NAMED])}")
    if not told:
        return Finding(kind, "Unknown", "NoReport", "no engine has answered yet")
    return Finding(kind, "True", "Compatible", "every engine that answered can be paced")


def _told(troubles: Sequence[Trouble]) -> str:
    more = f"; and {len(troubles) - _MOST_NAMED} more" if len(troubles) > _MOST_NAMED else ""
    return "; ".join(trouble.message for trouble in troubles[:_MOST_NAMED]) + more


def _rollout_message(facts: Facts) -> str:
    return (
        f"{len(facts.ready)} of {facts.replicas} engines serve, "
        f"{len(facts.serving) - len(facts.outdated)} of the current template, {len(facts.outdated)} to be replaced"
    )


def _lagging_message(facts: Facts) -> str:
    lagging = facts.lagging
    told = []
    for pod in lagging[:_MOST_NAMED]:
        report = facts.report(pod)
        why = "not asked yet" if report is None else report.error or ", ".join(report.behind) or "runs older settings"
        told.append(f"{pod.name}: {why}")
    more = f"; and {len(lagging) - _MOST_NAMED} more" if len(lagging) > _MOST_NAMED else ""
    return f"revision {facts.settings.revision} is not yet on {len(lagging)} engines: {'; '.join(told)}{more}"


_FINDERS: Final[tuple[Callable[[Facts], Finding], ...]] = (
    _ready,
    _available,
    _progressing,
    _config_applied,
    _scheduled,
    _model_loaded,
    _engine_compatible,
)
