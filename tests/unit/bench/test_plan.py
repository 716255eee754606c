import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.engine_ext.settings import PacingMode, PacingSettings

OFF: dict[str, Any] = {"name": "off"}
N4: dict[str, Any] = {"name": "n4", "pacing": {"mode": "Fixed", "interval": 4}}


def plan(**fields: Any) -> ExperimentPlan:
    return ExperimentPlan.model_validate_json(json.dumps({"name": "demo", "arms": [OFF, N4], **fields}))


def test_a_small_plan_gets_sensible_defaults() -> None:
    found = plan()
    assert found.workload == MixedPhase(target_prefill_seconds=12.0)
    assert (found.blocks, found.warm_up_blocks, found.control_arm) == (2, 1, True)
    assert [arm.name for arm in found.all_arms] == ["off", "n4", "off-control"]
    assert found.control == Arm(name="off-control")
    assert found.baseline.pacing.mode is PacingMode.DISABLED


def test_the_wire_form_is_camel_case_and_round_trips() -> None:
    found = plan(workload={"kind": "MixedPhase", "injectedPromptTokens": 4096}, controlArm=False)
    document = found.model_dump(mode="json", by_alias=True)
    assert document["workload"]["injectedPromptTokens"] == 4096
    assert document["arms"][1]["pacing"] == {"mode": "Fixed", "interval": 4, "slo": None}
    assert ExperimentPlan.model_validate(document) == found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"arms": []}, "at least 1 item"),
        ({"arms": [OFF, OFF]}, "the name 'off' is used more than once; give each arm a name of its own"),
        ({"arms": [OFF, {**N4, "name": "off-control"}]}, "-control is kept for the A/A arm"),
        ({"arms": [OFF, {"name": "same"}]}, "nothing is compared"),
        ({"arms": [{"name": "N 4"}, N4]}, "should match pattern"),
        ({"arms": [OFF, {"name": "x", "pacing": {"mode": "Fixed", "interval": -1}}]}, "greater than or equal to 0"),
        ({"arms": [OFF, {"name": "x", "pacing": {"mode": "Fixed", "interval": 10**9}}]}, "less than or equal to 1024"),
        ({"arms": [OFF, {"name": "x", "pacing": {"mode": "SLO"}}]}, "slo.timePerOutputTokenMilliseconds"),
        ({"blocks": 0}, "greater than or equal to 1"),
        ({"blocks": 101}, "less than or equal to 100"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"confidencePercent": 100}, "less than or equal to 99.9"),
        ({"surprise": 1}, "Extra inputs are not permitted"),
        ({"name": ""}, "at least 1 character"),
        ({"profile": "no-namespace"}, "should match pattern"),
        ({"workload": {"kind": "Unknown", "injectedPromptTokens": 8}}, "Input should be 'MixedPhase'"),
        ({"workload": {"kind": "MixedPhase"}}, "give either injectedPromptTokens"),
        ({"workload": {"injectedPromptTokens": 8, "targetPrefillSeconds": 1}}, "not both"),
        ({"workload": {"injectedPromptTokens": 0}}, "greater than or equal to 1"),
        ({"workload": {"injectedPromptTokens": 8, "residents": 0}}, "greater than or equal to 1"),
        ({"workload": {"injectedPromptTokens": 8, "beforeSeconds": 0}}, "greater than 0"),
        ({"workload": {"injectedPromptTokens": 8, "blockTimeoutSeconds": -5}}, "greater than 0"),
    ],
)
def test_a_bad_plan_is_refused_with_what_to_do(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        plan(**fields)
    assert said in str(caught.value)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValidationError, match="finite number"):
        MixedPhase(target_prefill_seconds=float("nan"))


def test_one_arm_alone_is_measured_against_its_repeat() -> None:
    assert [arm.name for arm in plan(arms=[OFF]).all_arms] == ["off", "off-control"]


def test_a_workload_says_what_it_runs() -> None:
    assert MixedPhase(injected_prompt_tokens=8_192).describe() == "2 residents, then a cold prompt of 8,192 tokens"
    sizing = MixedPhase(residents=1, target_prefill_seconds=2.5)
    assert sizing.describe() == "1 resident, then a cold prompt that prefills in about 2.5 s"
    assert sizing.sized(640).prompt_tokens == 640
    with pytest.raises(RuntimeError, match="not sized"):
        _ = sizing.prompt_tokens


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 1_000), st.booleans())
def test_every_arm_runs_once_a_block_and_pairs_of_blocks_mirror(
    blocks: int, arms: int, seed: int, control_arm: bool
) -> None:
    found = ExperimentPlan(
        name="x",
        arms=tuple(
            Arm(name=f"n{n}", pacing=PacingSettings(mode=PacingMode.FIXED, interval=n + 1)) for n in range(arms)
        ),
        blocks=blocks,
        seed=seed,
        control_arm=control_arm,
    )
    names = [arm.name for arm in found.all_arms]
    orders = [[arm.name for block, arm in found.schedule() if block == number] for number in range(blocks)]
    assert [block for block, _ in found.schedule()] == [n for n in range(blocks) for _ in names]
    assert all(sorted(order) == sorted(names) for order in orders)
    for even, odd in zip(orders[::2], orders[1::2], strict=False):
        assert odd == even[::-1]
    assert found.schedule() == found.schedule()


def test_the_seed_draws_the_order() -> None:
    orders = {tuple(arm.name for _, arm in plan(seed=seed).schedule()[:3]) for seed in range(40)}
    assert len(orders) == 6
