"""The operator killed between any two writes: the next one ends at the same."""

import gc
from functools import partial
from typing import Any

import pytest
from oplab import Lab
from oplab.kubelet import Pod
from oplab.operator import KilledError, RunningOperator

from paceline.operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    NETWORK_POLICIES,
    PROFILES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)

OBJECTS = (CONFIG_MAPS, SECRETS, SERVICES, SERVICE_ACCOUNTS, DEPLOYMENTS, DISRUPTION_BUDGETS, NETWORK_POLICIES)
MOST_WRITES = 40


def outcome(lab: Lab) -> dict[str, Any]:
    """Return what users and engines see in the end; the epoch counts operators, so it differs."""
    status = lab.status()
    objects = {
        (resource.kind, item["metadata"]["name"]): _essence(item)
        for resource in OBJECTS
        for item in lab.api.list(resource, lab.space)
    }
    events = sorted(
        (item["reason"], item["note"])
        for item in lab.api.list(EVENTS, lab.space)
        if item["reportingController"] == "paceline.dev/operator"
    )
    conditions = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    return {
        "objects": objects,
        "events": events,
        "conditions": conditions,
        "revision": status["revision"],
        "change": status["lastChange"],
        "generation": status["observedGeneration"],
    }


def _essence(item: dict[str, Any]) -> Any:
    volatile = ("metadata", "status", "data", "stringData")
    kept = {key: value for key, value in item.items() if key not in volatile}
    for field in ("clusterIP", "clusterIPs"):
        kept.get("spec", {}).pop(field, None)
    annotations = item["metadata"].get("annotations", {})
    return kept, {key: annotations[key] for key in sorted(annotations) if key != "paceline.dev/applied"}


def complete(lab: Lab, operator: RunningOperator, pods: list[Pod], *, revision: int, generation: int) -> None:
    def done() -> bool:
        status = lab.status()
        return (
            operator.is_idle
            and status.get("observedGeneration") == generation
            and status.get("revision") == revision
            and all(pod.engine.settings.revision == revision for pod in pods)
            and lab.condition("ConfigApplied")["status"] == ("True" if pods else "Unknown")
        )

    lab.wait(done, "all is done")


def create(lab: Lab) -> list[Pod]:
    lab.profile(pacing={"mode": "Fixed", "interval": 4})
    return []


def change_both(lab: Lab) -> list[Pod]:
    """Change a served profile hot and cold at once."""
    with lab.operator("operator-before"):
        pods = lab.serve(count=2, engine={"accelerator": "CPU", "replicas": 2}, pacing={"mode": "Fixed", "interval": 4})
    lab.change("web", {"pacing": {"interval": 8}, "engine": {"maxNumSeqs": 8}})
    return pods


# A killed operator closes nothing: what it left open is collected within its own test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize(
    ("prepare", "revision", "generation"),
    [pytest.param(create, 1, 1, id="a new profile"), pytest.param(change_both, 2, 2, id="a hot and a cold change")],
)
def test_killed_at_any_write_the_operator_ends_at_the_same(
    lab: Lab, prepare: Any, revision: int, generation: int, after: bool
) -> None:
    expected: dict[str, Any] | None = None
    for dies_at in [None, *range(1, MOST_WRITES)]:
        pods = prepare(lab)
        if dies_at is not None:
            with lab.operator("operator-killed", client={"dies_at": dies_at, "after": after}) as victim:
                lab.wait(partial(_at_end, lab, victim, generation), "an end")
            if victim.error is None:
                assert dies_at > 3, "the loop never reached a write"
                break
            assert victim.error.split(KilledError)[0] is not None
        with lab.operator("operator-next") as operator:
            complete(lab, operator, pods, revision=revision, generation=generation)
            seen = outcome(lab)
        expected = expected or seen
        assert seen == expected, f"killed at write {dies_at}"
        _clean(lab, pods)
    else:
        pytest.fail(f"more than {MOST_WRITES} writes")
    gc.collect()


def _at_end(lab: Lab, operator: RunningOperator, generation: int) -> bool:
    return not operator.is_alive or (operator.is_idle and lab.status().get("observedGeneration") == generation)


def _clean(lab: Lab, pods: list[Pod]) -> None:
    for pod in pods:
        pod.delete()
    for resource in (PROFILES, *OBJECTS, EVENTS):
        for item in lab.api.list(resource, lab.space):
            lab.api.delete(resource, lab.space, item["metadata"]["name"])
