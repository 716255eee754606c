"""Who declares a field of a profile, and what an apply must hold so that nothing of ours is lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.control_api.errors import ProblemError
from paceline.control_api.profiles.base import Change, Part
from paceline.control_api.profiles.cluster_changes import applied_manifest, require_free
from paceline.control_api.profiles.cluster_object import ClusterProfile
from paceline.control_api.profiles.ownership import (
    LAST_APPLIED,
    MANAGER,
    SET_BY,
    declarers,
    leaves,
    owned_paths,
    superseded_by,
)
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk, PacingMode, PacingSettings, SloSettings

PACING = {"mode": "Fixed", "interval": 8}
BOTH = ("mode", "interval")


def entry(manager: str, fields: tuple[str, ...], *, operation: str = "Apply", part: str = "pacing") -> dict[str, Any]:
    owned = {f"f:{name}": {} for name in fields}
    return {
        "manager": manager,
        "operation": operation,
        "fieldsV1": {"f:spec": {f"f:{part}": {".": {}, **owned}}, "f:metadata": {"f:annotations": {"f:x": {}}}},
    }


def manifest(
    *entries: dict[str, Any], filed: dict[str, Any] | None = None, set_by: tuple[Part, ...] = (), **spec: Any
) -> dict[str, Any]:
    annotations = {SET_BY[part]: "someone" for part in set_by}
    if filed is not None:
        annotations[LAST_APPLIED] = json.dumps({"spec": filed})
    metadata = {"namespace": "lab", "name": "web", "uid": "u", "resourceVersion": "7", "generation": 1}
    managed = {"managedFields": list(entries), "annotations": annotations}
    return {"metadata": metadata | managed, "spec": {"pacing": PACING, **spec}}


def wanted(**pacing: Any) -> dict[str, Any]:
    return {"spec": {"pacing": {**PACING, **pacing}}}


@pytest.mark.parametrize(
    ("profile", "change", "expected"),
    [
        (manifest(entry("gitops", BOTH)), wanted(interval=2), {"gitops": ("spec.pacing.interval",)}),
        (manifest(entry("gitops", BOTH)), wanted(), {}),
        (manifest(entry("gitops", ("mode",))), wanted(interval=2), {}),
        (manifest(entry(MANAGER, BOTH)), wanted(interval=2), {}),
        (manifest(entry("kubectl-patch", BOTH, operation="Update")), wanted(interval=2), {}),
        (
            manifest(entry("kubectl-client-side-apply", BOTH, operation="Update"), filed={"pacing": {"interval": 8}}),
            wanted(interval=2, mode="Disabled"),
            {"kubectl-client-side-apply": ("spec.pacing.interval",)},
        ),
        (
            manifest(entry("kubectl-client-side-apply", BOTH, operation="Update"), filed={"model": {}}),
            wanted(interval=2),
            {},
        ),
        (
            manifest(entry("a", BOTH), entry("b", ("interval",))),
            wanted(interval=2),
            {"a": ("spec.pacing.interval",), "b": ("spec.pacing.interval",)},
        ),
    ],
)
def test_a_field_is_declared_by_who_will_bring_it_back(
    profile: dict[str, Any], change: dict[str, Any], expected: dict[str, tuple[str, ...]]
) -> None:
    assert declarers(profile, change) == expected


def test_a_status_and_what_is_no_json_declare_nothing() -> None:
    status = {**entry("gitops", BOTH), "subresource": "status"}
    assert declarers(manifest(status), wanted(interval=2)) == {}
    odd = manifest(entry("kubectl", BOTH, operation="Update"))
    odd["metadata"]["annotations"][LAST_APPLIED] = "{"
    assert declarers(odd, wanted(interval=2)) == {}


@pytest.mark.parametrize(
    ("entries", "pacing", "expected"),
    [
        ([entry(MANAGER, BOTH), entry("gitops", BOTH)], PACING, ()),
        ([entry(MANAGER, ("mode",)), entry("gitops", ("interval",))], PACING, ("gitops",)),
        ([entry(MANAGER, ()), entry("b", ("mode",)), entry("a", ("interval",))], PACING, ("a", "b")),
        # A promise that mode Fixed has no use for is nobody's change; one that is in force is.
        ([entry(MANAGER, BOTH), entry("gitops", ("slo",))], {**PACING, "slo": {"x": 1}}, ()),
        ([entry(MANAGER, BOTH)], {"mode": "SLO", "interval": 8, "slo": {}}, ()),
    ],
)
def test_a_change_is_superseded_by_who_owns_what_we_set(
    entries: list[dict[str, Any]], pacing: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert superseded_by(manifest(*entries, set_by=("pacing",), pacing=pacing), "pacing") == expected
    assert superseded_by(manifest(*entries, set_by=("coalescing",), pacing=pacing), "pacing") == ()


def test_what_was_never_set_here_is_superseded_by_nobody() -> None:
    assert superseded_by(manifest(entry("gitops", BOTH)), "pacing") == ()


def test_a_promise_that_somebody_else_changed_supersedes() -> None:
    theirs = entry("gitops", ())
    theirs["fieldsV1"]["f:spec"]["f:pacing"]["f:slo"] = {"f:timePerOutputTokenMilliseconds": {}}
    pacing = {"mode": "SLO", "interval": 8, "slo": {"timePerOutputTokenMilliseconds": 80}}
    found = manifest(entry(MANAGER, BOTH), theirs, set_by=("pacing",), pacing=pacing)
    assert superseded_by(found, "pacing") == ("gitops",)


def test_coalescing_is_superseded_by_itself() -> None:
    coalescing = {"finalChunk": "Enabled", "admission": "Exclusive"}
    theirs = entry("gitops", ("admission",), part="coalescing")
    ours = entry(MANAGER, ("finalChunk",), part="coalescing")
    found = manifest(ours, theirs, set_by=("pacing", "coalescing"), coalescing=coalescing)
    assert superseded_by(found, "coalescing") == ("gitops",)


def test_an_apply_keeps_what_an_experiment_made_ours() -> None:
    coalescing = {"finalChunk": "Enabled", "maxSpanTokens": 128, "admission": "Exclusive"}
    ours = entry(MANAGER, ("finalChunk", "maxSpanTokens"), part="coalescing")
    before = ClusterProfile.read(manifest(ours, set_by=("coalescing",), coalescing=coalescing))
    applied = applied_manifest(before, Change(pacing=PacingSettings(mode=PacingMode.FIXED, interval=2), author="me"))
    assert applied["spec"] == {
        "pacing": {"mode": "Fixed", "interval": 2},
        "coalescing": {"finalChunk": "Enabled", "maxSpanTokens": 128},
    }
    assert applied["metadata"]["resourceVersion"] == "7"
    assert applied["metadata"]["uid"] == "u"
    authors = {"paceline.dev/pacing-set-by": "me", "paceline.dev/coalescing-set-by": "someone"}
    assert applied["metadata"]["annotations"] == authors
    arm = Change(coalescing=CoalescingSettings(final_chunk=FinalChunk.DISABLED, max_span_tokens=256))
    switched = applied_manifest(before, arm)
    assert switched["spec"] == {
        "coalescing": {"finalChunk": "Disabled", "maxSpanTokens": 256, "admission": "SinglePrefill"}
    }
    assert switched["metadata"]["annotations"] == {"paceline.dev/coalescing-set-by": ""}


def test_a_change_against_a_declared_field_is_refused_with_the_owner_and_the_way_out() -> None:
    before = ClusterProfile.read(manifest(entry("gitops", BOTH)))
    with pytest.raises(ProblemError) as refused:
        require_free(before, Change(pacing=PacingSettings(mode=PacingMode.FIXED, interval=2)))
    assert refused.value.status == 409
    assert "gitops declares spec.pacing.interval of lab/web" in refused.value.detail
    assert refused.value.extra == {"managers": ["gitops"]}
    require_free(before, Change(pacing=PacingSettings(mode=PacingMode.FIXED, interval=8)))


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ((entry("gitops", BOTH),), "(`paceline pace --force`)"),
        ((entry("gitops", ("finalChunk",), part="coalescing"),), "(`paceline coalesce --force`)"),
        (
            (entry("gitops", BOTH), entry("kustomize", ("finalChunk",), part="coalescing")),
            "(`paceline pace --force` and `paceline coalesce --force`)",
        ),
    ],
    ids=["pacing", "coalescing", "both"],
)
def test_a_refusal_names_the_commands_of_the_parts_that_are_declared(
    held: tuple[dict[str, Any], ...], told: str
) -> None:
    before = ClusterProfile.read(manifest(*held, coalescing={"finalChunk": "Disabled"}))
    change = Change(
        pacing=PacingSettings(mode=PacingMode.FIXED, interval=2),
        coalescing=CoalescingSettings(final_chunk=FinalChunk.ENABLED),
    )
    with pytest.raises(ProblemError) as refused:
        require_free(before, change)
    assert told in refused.value.detail


def test_the_entity_tag_stands_for_the_live_settings_alone() -> None:
    tag = ClusterProfile.read(manifest()).etag
    other = manifest(entry("x", BOTH), engine={"replicas": 3})
    other["metadata"] |= {"resourceVersion": "9", "generation": 4}
    assert ClusterProfile.read(other).etag == tag
    assert ClusterProfile.read(manifest(pacing={**PACING, "slo": None})).etag == tag
    assert ClusterProfile.read(manifest(pacing={**PACING, "interval": 9})).etag != tag
    assert ClusterProfile.read(manifest(coalescing={"finalChunk": "Enabled"})).etag != tag
    anew = manifest()
    anew["metadata"]["uid"] = "v"
    assert ClusterProfile.read(anew).etag != tag


promises = st.integers(1, 60_000).map(lambda value: SloSettings(time_per_output_token_milliseconds=value))
plain = st.tuples(st.sampled_from([PacingMode.FIXED, PacingMode.DISABLED]), st.integers(0, 1_024))
settings = st.one_of(
    plain.map(lambda value: PacingSettings(mode=value[0], interval=value[1])),
    promises.map(lambda promise: PacingSettings(mode=PacingMode.SLO, slo=promise)),
)


@given(settings)
def test_what_is_applied_reads_back_as_what_was_asked_for(pacing: PacingSettings) -> None:
    before = ClusterProfile.read(manifest())
    spec = applied_manifest(before, Change(pacing=pacing))["spec"]
    assert ClusterProfile.read(manifest(**spec)).pacing == pacing
    # No null: server-side apply would own the field with it.
    assert all(value is not None for _, value in leaves(spec))


def test_the_owned_fields_are_those_with_a_value() -> None:
    assert owned_paths(manifest(entry(MANAGER, BOTH))) == {("spec", "pacing", "mode"), ("spec", "pacing", "interval")}
