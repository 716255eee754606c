"""Conditions from facts: exact reasons, and properties that hold for every state."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings, SloSettings
from paceline.operator.api.status import Condition, ConditionType, InferenceProfileStatus
from paceline.operator.conditions import Facts, find_conditions, is_applied
from paceline.operator.engines import EngineReport
from paceline.operator.pods import ContainerView, PodView
from paceline.operator.status import Observation, pacing_summary, profile_status
from paceline.operator.troubles import Trouble, last_line, trouble_of

SETTINGS = LiveSettings(epoch=2, revision=5)
RUNNING = ContainerView(ready=True, started=True)
READY = PodView(
    name="web-1",
    uid="1",
    template="t",
    role="",
    created="",
    ip="10.0.0.1",
    node="n",
    phase="Running",
    ready=True,
    container=RUNNING,
)
APPLIED = EngineReport(settings=SETTINGS)
OLDER = EngineReport(settings=LiveSettings(epoch=2, revision=4))
FACTS = Facts(replicas=1, settings=SETTINGS, template="t", pods=[READY], reports={"web-1": APPLIED})


def found(facts: Facts) -> dict[str, tuple[str, str]]:
    return {finding.type.value: (finding.status, finding.reason) for finding in find_conditions(facts)}


def test_when_all_is_well() -> None:
    assert found(FACTS) == {
        "Ready": ("True", "Ready"),
        "Available": ("True", "EngineReady"),
        "Progressing": ("False", "Complete"),
        "ConfigApplied": ("True", "Applied"),
        "Scheduled": ("True", "Scheduled"),
        "ModelLoaded": ("True", "Loaded"),
        "EngineCompatible": ("True", "Compatible"),
    }


crashed = replace(
    READY,
    ready=False,
    container=ContainerView(waiting_reason="CrashLoopBackOff", exit_code=1, ended_message="a\nb\n\n"),
)
TABLE: list[Any] = [
    pytest.param({"pods": [], "reports": {}}, "RollingOut", "NoEngine", id="no pod yet"),
    pytest.param({"replicas": 0, "pods": [], "reports": {}}, "ScaledToZero", "NoEngine", id="scaled to zero"),
    pytest.param({"replicas": 2}, "RollingOut", "Applied", id="one of two"),
    pytest.param({"template": "newer"}, "RollingOut", "Applied", id="an older template"),
    pytest.param({"reports": {}}, "SettingsPending", "SettingsPending", id="not asked"),
    pytest.param({"reports": {"web-1": OLDER}}, "SettingsPending", "SettingsPending", id="older revision"),
    pytest.param({"pods": [crashed]}, "CrashLoopBackOff", "NoEngine", id="crash"),
    pytest.param({"refused": Trouble("ProfileRefused", "why")}, "ProfileRefused", "Applied", id="refused"),
    pytest.param(
        {"workload_failure": Trouble("FailedCreate", "quota")}, "FailedCreate", "Applied", id="no pod can be made"
    ),
]


@pytest.mark.parametrize(("changes", "ready", "applied"), TABLE)
def test_why_a_profile_is_not_ready(changes: dict[str, Any], ready: str, applied: str) -> None:
    conditions = found(replace(FACTS, **changes))
    assert conditions["Ready"] == ("False", ready)
    assert conditions["ConfigApplied"][1] == applied


def test_a_leaders_new_epoch_unsettles_no_engine() -> None:
    told = EngineReport(settings=SETTINGS.model_copy(update={"epoch": 1}))
    assert is_applied(told, SETTINGS)
    assert not is_applied(OLDER, SETTINGS)
    assert not is_applied(replace(APPLIED, behind=("engine core 1",)), SETTINGS)
    assert not is_applied(None, SETTINGS)
    other = SETTINGS.model_copy(update={"pacing": PacingSettings(mode=PacingMode.FIXED)})
    assert not is_applied(EngineReport(settings=other), SETTINGS), "another's revision of the same number"


containers = st.builds(
    ContainerView,
    started=st.booleans(),
    restarts=st.integers(0, 3),
    waiting_reason=st.sampled_from(["", "ContainerCreating", "CrashLoopBackOff", "ImagePullBackOff", "Odd"]),
    exit_code=st.sampled_from([None, 0, 1, 137]),
    ended_reason=st.sampled_from(["", "Error", "OOMKilled"]),
    ended_message=st.text(max_size=20),
)
pods = st.builds(
    PodView,
    name=st.sampled_from(["a", "b", "c"]),
    uid=st.just("u"),
    template=st.sampled_from(["t", "old"]),
    role=st.sampled_from(["", "leader", "worker"]),
    created=st.just(""),
    node=st.sampled_from(["", "n"]),
    phase=st.sampled_from(["Pending", "Running", "Failed"]),
    ready=st.booleans(),
    unscheduled_reason=st.sampled_from(["", "Unschedulable"]),
    unscheduled_message=st.text(max_size=10),
    container=containers,
).map(lambda pod: replace(pod, node="n", phase="Running", container=RUNNING) if pod.ready else pod)
facts = st.builds(
    Facts,
    replicas=st.integers(0, 3),
    settings=st.just(SETTINGS),
    template=st.just("t"),
    pods=st.lists(pods, max_size=3, unique_by=lambda pod: pod.name),
    reports=st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.sampled_from([APPLIED, OLDER, EngineReport(error="x")])
    ),
    refused=st.sampled_from([None, Trouble("ProfileRefused", "why")]),
    rolling_update=st.booleans(),
)


@given(facts)
def test_every_state_has_all_conditions_each_with_a_reason_and_a_sentence(seen: Facts) -> None:
    findings = find_conditions(seen)
    assert [finding.type for finding in findings] == list(ConditionType)
    assert all(finding.reason and finding.message for finding in findings)
    assert all(" " not in finding.reason for finding in findings)


@given(facts)
def test_ready_means_ready(seen: Facts) -> None:
    conditions = found(seen)
    if conditions["Ready"][0] == "True":
        assert conditions["Available"][0] == "True"
        assert conditions["ConfigApplied"][0] == "True"
        assert conditions["Progressing"] == ("False", "Complete")
        assert len(seen.ready) >= seen.replicas > 0
        assert all(trouble_of(pod) is None for pod in seen.pods)
    faults = [trouble for trouble in seen.troubles if trouble.is_fault]
    if faults and seen.refused is None and seen.replicas:
        assert conditions["Ready"] == ("False", faults[0].reason), "Creating never hides a fault"


@given(facts, facts)
def test_a_conditions_time_moves_exactly_with_its_status(before: Facts, after: Facts) -> None:
    first = profile_status(observation(before, InferenceProfileStatus(), "2026-01-01T00:00:00Z"))
    second = profile_status(observation(after, first, "2026-01-02T00:00:00Z"))
    for old, new in zip(first.conditions, second.conditions, strict=True):
        moved = new.last_transition_time != old.last_transition_time
        assert moved == (new.status != old.status)


def observation(seen: Facts, previous: InferenceProfileStatus, now: str) -> Observation:
    return Observation(
        generation=1,
        previous=previous,
        now=now,
        facts=seen,
        selector="a=b",
        endpoint="http://x",
        pacing=PacingSettings(),
    )


def test_a_status_outlives_its_own_text() -> None:
    status = profile_status(observation(FACTS, InferenceProfileStatus(), "2026-01-01T00:00:00Z"))
    assert InferenceProfileStatus.model_validate(status.model_dump(by_alias=True, mode="json")) == status
    assert isinstance(status.condition(ConditionType.READY), Condition)
    long = replace(FACTS, refused=Trouble("ProfileRefused", "x" * 9_000))
    message = profile_status(observation(long, status, "2026-01-01T00:00:00Z")).conditions[0].message
    assert len(message) == 2_000


def test_a_pod_shows_what_its_page_gate_does_and_why_it_coalesces_nothing() -> None:
    told = replace(APPLIED, page_gate="AnyPage: off, no kernels", uncoalesced="blocks of 784 tokens")
    facts = replace(FACTS, reports={"web-1": told})
    status = profile_status(observation(facts, InferenceProfileStatus(), "2026-01-01T00:00:00Z"))
    assert [(pod.page_gate, pod.uncoalesced, pod.message, pod.applied) for pod in status.pods] == [
        ("AnyPage: off, no kernels", "blocks of 784 tokens", "", "True")
    ]
    assert {condition.type: condition.status for condition in status.conditions}["Ready"] == "True"


@pytest.mark.parametrize(
    ("pacing", "summary"),
    [
        (PacingSettings(), "Disabled"),
        (PacingSettings(mode=PacingMode.FIXED, interval=4), "Fixed/4"),
        (PacingSettings(mode=PacingMode.SLO, slo=SloSettings(time_per_output_token_milliseconds=80)), "SLO/80ms"),
    ],
)
def test_pacing_in_a_word(pacing: PacingSettings, summary: str) -> None:
    assert pacing_summary(pacing) == summary


@pytest.mark.parametrize(
    ("tail", "line"), [("", ""), ("one\n", "one"), ("one\n two \n\n \n", "two"), ("x" * 900, "x" * 400)]
)
def test_the_last_line_of_a_log_that_says_something(tail: str, line: str) -> None:
    assert last_line(tail) == line
