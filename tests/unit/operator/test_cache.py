"""The cache: news wakes the profile it belongs to, a list drops what vanished, an old version changes nothing."""

from typing import Any

from paceline.operator.cache import Cache, Key
from paceline.operator.kube.resources import DEPLOYMENTS, PODS, PROFILES

WEB = Key("team", "web")


def manifest(name: str, version: int, *, uid: str = "", label: str | None = "web", **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
    }
    if label:
        metadata["labels"] = {"paceline.dev/profile": label}
    return {"metadata": metadata, **fields}


def filled() -> tuple[Cache, list[Key]]:
    told: list[Key] = []
    cache = Cache(told.append)
    cache.put(PROFILES, manifest("web", 1, label=None, spec={}))
    cache.put(DEPLOYMENTS, manifest("web", 2, spec={"replicas": 1}))
    cache.put(PODS, manifest("web-1", 3))
    return cache, told


def test_everything_of_a_profile_is_found_under_it() -> None:
    cache, told = filled()
    assert told == [WEB, WEB, WEB]
    assert list(cache.profiles()) == [WEB]
    assert [pod.name for pod in cache.pods(WEB)] == ["web-1"]
    record = cache.object(WEB, "Deployment", "web")
    assert record is not None
    assert record.manifest()["spec"] == {"replicas": 1}


def test_an_old_version_changes_nothing() -> None:
    cache, told = filled()
    told.clear()
    cache.put(DEPLOYMENTS, manifest("web", 1, spec={"replicas": 9}))
    cache.put(DEPLOYMENTS, manifest("web", 2, spec={"replicas": 9}))
    assert told == []
    assert cache.objects(WEB)["Deployment", "web"].manifest()["spec"] == {"replicas": 1}


def test_a_pod_that_changed_in_nothing_that_counts_wakes_nobody() -> None:
    cache, told = filled()
    told.clear()
    cache.put(PODS, manifest("web-1", 8, spec={"priority": 1}))
    assert told == []
    cache.put(PODS, manifest("web-1", 9, status={"podIP": "10.0.0.1"}))
    assert told == [WEB]


def test_a_list_drops_what_vanished_unseen() -> None:
    cache, told = filled()
    cache.put(PODS, manifest("web-2", 4))
    told.clear()
    cache.keep_only(PODS, None, {"uid-web-2"})
    assert [pod.name for pod in cache.pods(WEB)] == ["web-2"]
    assert told == [WEB]
    cache.keep_only(PODS, "elsewhere", set())
    assert len(cache.pods(WEB)) == 1, "a list of another namespace says nothing"


def test_a_late_deletion_does_not_drop_the_successor() -> None:
    cache, _ = filled()
    cache.put(DEPLOYMENTS, manifest("web", 9, uid="new", spec={}))
    cache.remove(DEPLOYMENTS, manifest("web", 8, uid="uid-web"))
    assert cache.objects(WEB)["Deployment", "web"].uid == "new"


def test_a_profile_that_is_gone_leaves_no_memory() -> None:
    cache, told = filled()
    for resource, name in ((PROFILES, "web"), (DEPLOYMENTS, "web"), (PODS, "web-1")):
        cache.remove(resource, manifest(name, 10, label=None if resource == PROFILES else "web"))
    assert told[-1] == WEB
    assert list(cache.profiles()) == []
    assert cache.profile(WEB) is None
    assert cache.pods(WEB) == []
    assert not cache._families


def test_whoever_scaled_a_workload_is_known() -> None:
    cache, _ = filled()
    live = manifest("web", 5, spec={"replicas": 3})
    live["metadata"]["managedFields"] = [
        {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "other", "fieldsV1": {"f:metadata": {}}},
    ]
    cache.put(DEPLOYMENTS, live)
    record = cache.objects(WEB)["Deployment", "web"]
    assert record.scalers == {"kubectl"}
    assert "managedFields" not in record.text
