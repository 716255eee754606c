"""Experiment plans from options and files."""

from pathlib import Path
from typing import Any

import pytest
import typer

from paceline.cli.errors import CliError
from paceline.cli.plans import arm_of, build_plan, merge_plan, read_plan
from paceline.engine_ext.settings import PacingMode

ARMS = [{"name": "off"}, {"name": "n=4", "pacing": {"mode": "Fixed", "interval": 4}}]


@pytest.mark.parametrize(
    ("text", "name", "mode", "interval"),
    [
        ("off", "off", PacingMode.DISABLED, None),
        ("Disabled", "off", PacingMode.DISABLED, None),
        ("4", "n=4", PacingMode.FIXED, 4),
        ("n=16", "n=16", PacingMode.FIXED, 16),
    ],
)
def test_arms_of_a_constant(text: str, name: str, mode: PacingMode, interval: int | None) -> None:
    arm = arm_of(text)
    assert (arm.name, arm.pacing.mode) == (name, mode)
    assert interval is None or arm.pacing.interval == interval


@pytest.mark.parametrize("text", ["80ms", "slo=80ms", "0.08s"])
def test_arms_of_a_promise(text: str) -> None:
    arm = arm_of(text)
    assert arm.name == "slo=80ms"
    assert arm.pacing.slo is not None
    assert arm.pacing.slo.time_per_output_token_milliseconds == 80


@pytest.mark.parametrize("text", ["", "four", "4,5", "-1", "1025", "4.5", "0ms", "fast=4"])
def test_what_is_no_arm_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arm_of(text)


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        ({}, {}, {"targetPrefillSeconds": 10.0}),
        ({}, {"injectedPromptTokens": 9}, {"injectedPromptTokens": 9}),
        ({"injectedPromptTokens": 9}, {}, {"injectedPromptTokens": 9}),
        (
            {"injectedPromptTokens": 9, "residents": 3},
            {"targetPrefillSeconds": 2},
            {"residents": 3, "targetPrefillSeconds": 2},
        ),
        ({"targetPrefillSeconds": 2}, {"residents": 5}, {"targetPrefillSeconds": 2, "residents": 5}),
    ],
)
def test_options_overrule_a_workload(given: dict[str, Any], options: dict[str, Any], expected: dict[str, Any]) -> None:
    merged = merge_plan({"workload": given}, {}, options)
    assert merged["workload"] == {"kind": "MixedPhase", **expected}


def test_options_overrule_a_plan() -> None:
    plan = build_plan(merge_plan({"name": "mine", "arms": ARMS, "blocks": 9}, {"blocks": 3}, {}))
    assert (plan.name, plan.blocks, [arm.name for arm in plan.arms]) == ("mine", 3, ["off", "n=4"])


def test_every_wrong_field_of_a_plan_is_named() -> None:
    with pytest.raises(CliError) as caught:
        build_plan(merge_plan({"arms": ARMS, "blocks": 0, "block": 1}, {}, {"residents": -1}))
    for expected in ("blocks: Input should be", "block: Extra inputs", "workload.residents: Input should be"):
        assert expected in caught.value.message


def test_a_workload_that_is_no_mapping_is_told() -> None:
    with pytest.raises(CliError, match="workload"):
        build_plan(merge_plan({"arms": ARMS, "workload": "all"}, {}, {}))


def test_what_yaml_takes_for_a_date_is_told(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("name: 2026-01-01\narms: [{name: 'off'}]\n")
    with pytest.raises(CliError, match="date is not JSON serializable; put quotes around"):
        build_plan(read_plan(path))


def test_plan_files(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_text('{"name": "x", "arms": []}')
    assert read_plan(path) == {"name": "x", "arms": []}
    path.write_text("name: x\narms: []\n")
    assert read_plan(path) == {"name": "x", "arms": []}
    path.write_text("- x")
    with pytest.raises(CliError, match="holds no plan"):
        read_plan(path)
    path.write_text("{")
    with pytest.raises(CliError, match="neither YAML nor JSON"):
        read_plan(path)
    with pytest.raises(CliError, match="cannot read the plan"):
        read_plan(tmp_path / "nothing")
