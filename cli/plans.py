"""Experiment plans from options or from a file."""

import json
import re
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paceline.bench.plan import Arm, ExperimentPlan
from paceline.cli.durations import milliseconds
from paceline.cli.errors import CliError, ExitCode
from paceline.engine_ext.settings import PacingMode, PacingSettings, SloSettings

_SLO: Final = re.compile(r"(?:slo=)?(?P<promise>\d.*ms|\d.*s)")

DEFAULT_NAME: Final = "mixed phase"
DEFAULT_PREFILL_SECONDS: Final = 10.0

SIZES: Final = frozenset({"injectedPromptTokens", "targetPrefillSeconds"})
"""The two ways to size the prompt, of which a plan has one."""


def arm_of(text: str) -> Arm:
    """Return the arm that `off`, an interval as `4`, or a promise as `80ms` stands for. Raises typer.BadParameter."""
    word = text.strip().lower()
    try:
        if word in ("off", "disabled"):
            return Arm(name="off")
        if word.removeprefix("n=").isdecimal():
            interval = int(word.removeprefix("n="))
            return Arm(name=f"n={interval}", pacing=PacingSettings(mode=PacingMode.FIXED, interval=interval))
        if match := _SLO.fullmatch(word):
            promise = milliseconds(match["promise"])
            slo = SloSettings(time_per_output_token_milliseconds=promise)
            return Arm(name=f"slo={promise}ms", pacing=PacingSettings(mode=PacingMode.SLO, slo=slo))
    except ValidationError as error:
        raise typer.BadParameter(f"{text!r}: {error.errors()[0]['msg']}") from None
    raise typer.BadParameter(f"{text!r} is no arm: write off, an interval as 4, or a promise as 80ms")


def read_plan(path: Path) -> dict[str, Any]:
    """Return the document of a plan's file, YAML or JSON. Raises CliError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _invalid(f"cannot read the plan {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _invalid(f"{path} is neither YAML nor JSON: {error}") from None
    if not isinstance(document, dict):
        raise _invalid(f"{path} holds no plan: expected a mapping with the fields name, workload, arms")
    return document


def merge_plan(document: dict[str, Any], overrides: dict[str, Any], workload: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's document with fields of the plan and of its workload overruled; without any size, a default one.

    The two ways to size the prompt exclude each other: an override of one drops the other.
    """
    merged = {"name": DEFAULT_NAME, **document, **overrides}
    given = document.get("workload", {})
    if not isinstance(given, dict):
        return merged
    if SIZES & workload.keys():
        given = {name: value for name, value in given.items() if name not in SIZES}
    elif not SIZES & given.keys():
        given = {**given, "targetPrefillSeconds": DEFAULT_PREFILL_SECONDS}
    merged["workload"] = {"kind": "MixedPhase", **given, **workload}
    return merged


def build_plan(document: dict[str, Any]) -> ExperimentPlan:
    """Return the plan of a document, once it is valid. Raises CliError that names every field at fault."""
    try:
        # By way of JSON, as the control API reads it: tuples are lists there.
        return ExperimentPlan.model_validate_json(json.dumps(document))
    except TypeError as error:
        # YAML knows dates, bytes and sets, which no plan has.
        raise _invalid(f"this plan is not valid: {error}; put quotes around what is meant as text") from None
    except ValidationError as error:
        lines = "".join(f"\n  {_problem(details)}" for details in error.errors())
        raise _invalid(f"this plan is not valid:{lines}") from None


def _problem(details: ErrorDetails) -> str:
    where = ".".join(str(part) for part in details["loc"]) or "plan"
    return f"{where}: {details['msg'].removeprefix('Value error, ')}"


def _invalid(message: str) -> CliError:
    return CliError(message, advice="Nothing was started.", code=ExitCode.INVALID)
