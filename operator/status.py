"""From what was observed to the profile's status. Pure."""

from dataclasses import dataclass
from typing import Final

from paceline.engine_ext.settings import PacingMode, PacingSettings
from paceline.operator.api.status import MAX_PODS, ChangeStatus, Condition, InferenceProfileStatus, PodStatus
from paceline.operator.conditions import Facts, Finding, find_conditions, is_applied
from paceline.operator.pods import PodView
from paceline.operator.troubles import trouble_of

_LONGEST_MESSAGE: Final = 2_000


@dataclass(frozen=True)
class Observation:
    """Everything that a status is made from. `now` is the time as RFC 3339 writes it."""

    generation: int
    previous: InferenceProfileStatus
    now: str
    facts: Facts
    selector: str
    endpoint: str
    pacing: PacingSettings
    change: ChangeStatus | None = None
    template_update: str = ""


def pacing_summary(pacing: PacingSettings) -> str:
    """Return the pacing in a word for a table: Disabled, Fixed/4, SLO/80ms."""
    if pacing.mode is PacingMode.FIXED:
        return f"Fixed/{pacing.interval}"
    if pacing.mode is PacingMode.SLO and pacing.slo is not None:
        return f"SLO/{pacing.slo.time_per_output_token_milliseconds}ms"
    return pacing.mode.value


def profile_status(seen: Observation) -> InferenceProfileStatus:
    """Return the status. A condition's time moves only when its status does."""
    facts = seen.facts
    return InferenceProfileStatus(
        observed_generation=seen.generation,
        epoch=facts.settings.epoch,
        revision=facts.settings.revision,
        pacing=pacing_summary(seen.pacing),
        replicas=len(facts.serving),
        ready_replicas=len(facts.ready),
        updated_replicas=len(facts.serving) - len(facts.outdated),
        selector=seen.selector,
        endpoint=seen.endpoint,
        last_change=seen.change or seen.previous.last_change,
        template_update=seen.template_update[:_LONGEST_MESSAGE],
        conditions=[_condition(seen, finding) for finding in find_conditions(facts)],
        pods=[_pod_status(pod, facts) for pod in facts.serving[:MAX_PODS]],
    )


def _condition(seen: Observation, finding: Finding) -> Condition:
    before = seen.previous.condition(finding.type)
    unmoved = before is not None and before.status == finding.status
    return Condition(
        type=finding.type.value,
        status=finding.status,
        reason=finding.reason,
        message=finding.message[:_LONGEST_MESSAGE],
        observed_generation=seen.generation,
        last_transition_time=before.last_transition_time if before is not None and unmoved else seen.now,
    )


def _pod_status(pod: PodView, facts: Facts) -> PodStatus:
    report, trouble = facts.report(pod), trouble_of(pod)
    epoch, revision = (0, 0) if report is None else report.fence
    message = trouble.message if trouble is not None else report.error if report is not None else ""
    return PodStatus(
        name=pod.name,
        node=pod.node,
        ready="True" if pod.ready else "False",
        applied="True" if is_applied(report, facts.settings) else "False",
        epoch=epoch,
        revision=revision,
        restarts=pod.container.restarts,
        message=message[:_LONGEST_MESSAGE],
        page_gate="" if report is None else report.page_gate[:_LONGEST_MESSAGE],
        uncoalesced="" if report is None else report.uncoalesced[:_LONGEST_MESSAGE],
    )
