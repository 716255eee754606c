"""Which changes restart engines, which don't, and what an upgrade of the operator must never do."""

from typing import Any

import pytest
from builders import subject_of
from hypothesis import given
from hypothesis import strategies as st

from paceline.operator.api.status import ChangeKind
from paceline.operator.api.v1alpha1 import InferenceProfileSpec
from paceline.operator.plan import cold_changes, cold_leaves, plan_change


def spec(**parts: dict[str, Any]) -> InferenceProfileSpec:
    return subject_of(parts).spec


BASE = spec()

TABLE = [
    pytest.param({}, ChangeKind.NONE, [], id="nothing"),
    pytest.param(
        {"pacing": {"mode": "Fixed", "interval": 8}},
        ChangeKind.HOT,
        ["pacing.interval: 4 -> 8", "pacing.mode: Disabled -> Fixed"],
        id="pacing",
    ),
    pytest.param(
        {"pacing": {"mode": "SLO", "slo": {"timePerOutputTokenMilliseconds": 80}}},
        ChangeKind.HOT,
        [
            "pacing.mode: Disabled -> SLO",
            "pacing.slo.maxPrefillDelaySeconds: unset -> 60",
            "pacing.slo.precedence: unset -> PrefillDelay",
            "pacing.slo.timePerOutputTokenMilliseconds: unset -> 80",
        ],
        id="slo",
    ),
    pytest.param(
        {"coalescing": {"finalChunk": "Enabled"}},
        ChangeKind.HOT,
        ["coalescing.finalChunk: Disabled -> Enabled"],
        id="coalescing",
    ),
    pytest.param({"engine": {"replicas": 3}}, ChangeKind.NONE, ["engine.replicas: 1 -> 3"], id="replicas"),
    pytest.param(
        {"rollout": {"strategy": "RollingUpdate"}},
        ChangeKind.NONE,
        ["rollout.strategy: Recreate -> RollingUpdate"],
        id="rollout strategy",
    ),
    pytest.param(
        {"rollout": {"drainSeconds": 5}}, ChangeKind.COLD, ["rollout.drainSeconds: 60 -> 5"], id="grace period"
    ),
    pytest.param(
        {"model": {"source": "hf://org/other"}},
        ChangeKind.COLD,
        ["model.source: hf://org/name -> hf://org/other"],
        id="model",
    ),
    pytest.param(
        {"engine": {"parallelism": {"tensor": 2}}},
        ChangeKind.COLD,
        ["engine.parallelism.tensor: 1 -> 2"],
        id="parallelism",
    ),
    pytest.param({"pageGate": {"mode": "Auto"}}, ChangeKind.COLD, ["pageGate.mode: Disabled -> Auto"], id="page gate"),
    pytest.param(
        {"engine": {"nodeSelector": {"gpu.example/kind": "old"}}},
        ChangeKind.COLD,
        ["engine.nodeSelector.gpu.example/kind: unset -> old"],
        id="a key with dots",
    ),
    pytest.param(
        {"pageGate": {"mode": "Auto"}, "pacing": {"interval": 2}},
        ChangeKind.COLD,
        ["pageGate.mode: Disabled -> Auto", "pacing.interval: 4 -> 2"],
        id="cold and hot at once",
    ),
]


@pytest.mark.parametrize(("parts", "kind", "fields"), TABLE)
def test_what_a_change_does(parts: dict[str, Any], kind: ChangeKind, fields: list[str]) -> None:
    plan = plan_change(BASE, spec(**parts))
    assert (plan.kind, list(plan.fields)) == (kind, fields)
    assert all(field in plan.message for field in fields)


@pytest.mark.parametrize("parts", [row.values[0] for row in TABLE])
def test_the_way_back_is_of_the_same_kind(parts: dict[str, Any]) -> None:
    assert plan_change(spec(**parts), BASE).kind is plan_change(BASE, spec(**parts)).kind


def test_what_may_be_secret_is_never_shown() -> None:
    new = spec(engine={"env": [{"name": "API_KEY", "value": "hunter2"}], "extraArgs": ["--api-key", "hunter2"]})
    plan = plan_change(BASE, new)
    assert plan.kind is ChangeKind.COLD
    assert "engine.env[API_KEY]" in plan.message
    assert "engine.extraArgs" in plan.message
    assert "hunter2" not in plan.message
    assert "hunter2" not in str(cold_leaves(new))
    other = spec(engine={"env": [{"name": "API_KEY", "value": "hunter3"}], "extraArgs": ["--api-key", "hunter2"]})
    assert [field.split(":")[0] for field in plan_change(new, other).fields] == ["engine.env[API_KEY]"]


def test_a_long_value_is_shortened_and_still_told_apart() -> None:
    long = "x" * 300
    first, second = (spec(model={"source": f"hf://org/{long}{end}"}) for end in "ab")
    (field,) = plan_change(first, second).fields
    assert len(field) < 200
    assert plan_change(first, first).kind is ChangeKind.NONE


def test_a_field_that_came_with_an_upgrade_restarts_nothing_at_its_default() -> None:
    wanted = cold_leaves(BASE)
    before_the_upgrade = {path: text for path, text in wanted.items() if path != "rollout.startSeconds"}
    assert cold_changes(before_the_upgrade, wanted) == ()
    set_by_the_user = cold_leaves(spec(rollout={"startSeconds": 600}))
    assert cold_changes(before_the_upgrade, set_by_the_user) == ("rollout.startSeconds: unset -> 600",)


def test_a_field_that_left_with_an_upgrade_restarts_nothing() -> None:
    applied = {**cold_leaves(BASE), "engine.turboMode": "Enabled", "oldStruct.mode": "Auto"}
    assert cold_changes(applied, cold_leaves(BASE)) == ()


def test_a_default_that_an_upgrade_changed_restarts_nothing_for_stored_profiles() -> None:
    # The API server stored the old default when the profile was written, so the spec still says it.
    stored = cold_leaves(spec(rollout={"startSeconds": 3600}))
    assert cold_changes(stored, stored) == ()


def test_an_unset_optional_field_is_a_change() -> None:
    applied = cold_leaves(spec(engine={"maxNumSeqs": 16}))
    assert cold_changes(applied, cold_leaves(BASE)) == ("engine.maxNumSeqs: 16 -> unset",)
    with_variable = cold_leaves(spec(engine={"env": [{"name": "A", "value": "1"}]}))
    (field,) = cold_changes(with_variable, cold_leaves(BASE))
    assert field.startswith("engine.env[A]: ")


hot = st.fixed_dictionaries(
    {},
    optional={
        "pacing": st.fixed_dictionaries(
            {"mode": st.sampled_from(["Disabled", "Fixed"])}, optional={"interval": st.integers(0, 1024)}
        ),
        "coalescing": st.fixed_dictionaries({"maxSpanTokens": st.integers(64, 131_072)}),
    },
)
cold = st.fixed_dictionaries(
    {},
    optional={
        "maxNumSeqs": st.integers(1, 64),
        "maxNumBatchedTokens": st.integers(64, 8192),
        "extraArgs": st.lists(st.text(max_size=8), max_size=3),
        "env": st.lists(st.sampled_from("AB"), unique=True).map(lambda names: [{"name": name} for name in names]),
    },
)


@given(before=hot, after=hot, engine=cold, replicas=st.integers(0, 256))
def test_hot_settings_and_replicas_never_make_a_cold_change(
    before: dict[str, Any], after: dict[str, Any], engine: dict[str, Any], replicas: int
) -> None:
    old, new = spec(engine=engine, **before), spec(engine={**engine, "replicas": replicas}, **after)
    plan = plan_change(old, new)
    assert plan.kind is not ChangeKind.COLD
    assert (plan.kind is ChangeKind.HOT) == (old.live_settings() != new.live_settings())


@given(old=cold, new=cold)
def test_cold_leaves_differ_exactly_where_specs_do(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = spec(engine=old), spec(engine=new)
    # Variables are put into the pod by name, so the order in which a profile lists them means nothing.
    assert (plan_change(before, after).kind is ChangeKind.NONE) == (_env_by_name(old) == _env_by_name(new))


def _env_by_name(engine: dict[str, Any]) -> dict[str, Any]:
    return {**spec(engine=engine).engine.model_dump(), "env": {item["name"] for item in engine.get("env", ())}}


def test_variables_in_another_order_change_nothing() -> None:
    first, second = {"name": "A", "value": "1"}, {"name": "B", "value": "2"}
    before, after = spec(engine={"env": [first, second]}), spec(engine={"env": [second, first]})
    assert plan_change(before, after).kind is ChangeKind.NONE
    swapped = spec(engine={"env": [first | {"value": "2"}, second | {"value": "1"}]})
    assert plan_change(before, swapped).kind is ChangeKind.COLD
