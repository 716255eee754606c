"""`paceline simulate`: what a setting would do on hardware that is not here, by vLLM's scheduler in virtual time."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml

from paceline.bench.plan import Arm
from paceline.bench.report import text_table
from paceline.bench.simulator.calibrate import Stored, calibrate
from paceline.bench.simulator.exchange import MAX_ARMS, SimulatedArm, SimulationRequest, SimulationResult
from paceline.bench.simulator.hardware import (
    Hardware,
    HardwareError,
    SimulatedWorkload,
    known_hardware,
    load_hardware,
)
from paceline.bench.simulator.tables import Measured, comparison_table, figures_table
from paceline.cli.apis import experiments_api
from paceline.cli.commands.report import fetch
from paceline.cli.durations import milliseconds
from paceline.cli.errors import CliError, ExitCode
from paceline.cli.local.launch import inherited
from paceline.cli.local.preflight import find_engine_python
from paceline.cli.output import OutputFormat, OutputOption, notice_console, print_json
from paceline.cli.plans import arm_of
from paceline.control_api.schemas.experiments import ExperimentDetail
from paceline.engine_ext.settings import PacingMode

EPILOG = f"""Examples:

  paceline simulate --hardware v100x2 --interval 0,4,8

  paceline simulate --hardware v100x4 --interval 0,4 --slo 60ms --stock

  paceline simulate --calibrate latest --interval 0,2,4,8,16 --prompt-tokens 20000 --save-hardware mine.yaml

Hardware models: {", ".join(known_hardware())}, or a YAML file of your own. Nothing it prints was measured, unless it
says so: everything is simulated.
Exit status 2: the input isn't valid, or no interpreter has vLLM."""

SIMULATOR: Final = "paceline.bench.simulator"
SIMULATION_SECONDS: Final = 3_600
DEFAULT_INTERVALS: Final = "0,4,8"
STOCK: Final = "vllm-stock"


def simulate(
    hardware: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="A hardware model; see below for those that there are.")
    ] = None,
    calibrations: Annotated[
        list[str] | None,
        typer.Option(
            "--calibrate",
            metavar="EXPERIMENT",
            help="Instead: fit the model to a stored experiment, or `latest`; may be given several times.",
        ),
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="N,N...", help="Fixed intervals; 0 is unpaced. [default: 0,4,8]")
    ] = None,
    slo: Annotated[str | None, typer.Option(metavar="MS,MS...", help="Promises per output token, as 80ms.")] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Add vLLM's own scheduler as an arm.")] = False,
    residents: Annotated[int | None, typer.Option(min=1, max=1_024, help="Requests that decode throughout.")] = None,
    resident_context_tokens: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="How long each resident's context is.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Length of the prompt that arrives.")
    ] = None,
    save_hardware: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="Keep the hardware model, to use or to edit it.")
    ] = None,
    engine_python: Annotated[
        Path | None, typer.Option(help="The interpreter that has vLLM; found as by `paceline up`.", show_default=False)
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a mixed phase under several settings; no engine, no model and no accelerator is needed."""
    details = _experiments(calibrations or [])
    model = _hardware(hardware, details)
    arms = _arms(interval, slo, stock=stock, details=details)
    given = {
        "residents": residents,
        "resident_context_tokens": resident_context_tokens,
        "prompt_tokens": prompt_tokens,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    work = model.workload.model_copy(update=changes)
    _check_fit(model, work)
    if save_hardware is not None:
        _save(model, save_hardware)
    result = _run(SimulationRequest(hardware=model, workload=work, arms=tuple(arms)), engine_python)
    measured = {} if changes else _measured(details)
    if output is OutputFormat.JSON:
        print_json(
            {
                **result.model_dump(mode="json", by_alias=True),
                "hardware": model.model_dump(mode="json", by_alias=True),
                "workload": work.model_dump(mode="json", by_alias=True),
                "measured": {
                    arm: {metric.value: value for metric, value in of.items()} for arm, of in measured.items()
                },
            }
        )
        return
    tables = [figures_table(model, work, result)]
    if measured:
        tables.append(comparison_table(result, measured))
    typer.echo("\n\n".join(text_table(table) for table in tables))


def _experiments(identifiers: list[str]) -> list[ExperimentDetail]:
    if not identifiers:
        return []
    with experiments_api() as client:
        return [fetch(client, identifier, with_result=True)[0] for identifier in identifiers]


def _hardware(name: str | None, details: list[ExperimentDetail]) -> Hardware:
    if (name is None) == (not details):
        raise CliError(
            "give either --hardware or --calibrate" + ("" if name is None else ", not both"),
            advice=f"Hardware models: {', '.join(known_hardware())}.",
            code=ExitCode.INVALID,
        )
    try:
        if name is not None:
            return load_hardware(name)
        stored = [Stored(detail.plan, detail.engine, detail.blocks, _draft_tokens(detail)) for detail in details]
        others = f"-and-{len(details) - 1}-more" if len(details) > 1 else ""
        return calibrate(f"calibrated-{details[0].id[:12]}{others}", stored)
    except HardwareError as error:
        raise CliError(str(error), code=ExitCode.INVALID) from None


def _check_fit(model: Hardware, work: SimulatedWorkload) -> None:
    try:
        model.must_hold(work)
    except HardwareError as error:
        advice = "Lower --residents, --resident-context-tokens or --prompt-tokens, or raise the limit in a file."
        raise CliError(str(error), advice=advice, code=ExitCode.INVALID) from None


def _draft_tokens(detail: ExperimentDetail) -> int:
    speculative = detail.profile_snapshot.spec.engine.speculative
    return speculative.draft_tokens if speculative else 0


def _arms(interval: str | None, slo: str | None, *, stock: bool, details: list[ExperimentDetail]) -> list[SimulatedArm]:
    if interval is None and slo is None and details:
        wanted = list(details[0].plan.arms)
    else:
        intervals = DEFAULT_INTERVALS if interval is None and slo is None else interval or ""
        wanted = [*map(_paced_by_interval, _items(intervals)), *map(_paced_by_promise, _items(slo or ""))]
    arms = [SimulatedArm(name=arm.name, pacing=arm.pacing) for arm in wanted]
    arms = [*([SimulatedArm(name=STOCK)] if stock else []), *arms]
    if not 1 <= len(arms) <= MAX_ARMS:
        raise typer.BadParameter(f"{len(arms)} settings to simulate: give 1 to {MAX_ARMS} with --interval and --slo")
    return arms


def _items(texts: str) -> list[str]:
    return [text for text in texts.split(",") if text.strip()]


def _paced_by_interval(text: str) -> Arm:
    arm = arm_of(text)
    if arm.pacing.mode is PacingMode.SLO:
        raise typer.BadParameter(f"{text!r} is a promise: give it with --slo", param_hint="--interval")
    return arm


def _paced_by_promise(text: str) -> Arm:
    return arm_of(f"{milliseconds(text)}ms")


def _measured(details: list[ExperimentDetail]) -> Measured:
    if len(details) != 1 or details[0].result is None:
        return {}
    return {
        arm.arm: {metric: estimate.value for metric, estimate in arm.metrics.items()} for arm in details[0].result.arms
    }


def _run(request: SimulationRequest, engine_python: Path | None) -> SimulationResult:
    """Simulate in a process of the interpreter that has vLLM. Raises CliError."""
    python = find_engine_python(engine_python)
    if python.warning:
        notice_console().print(f"warning: {python.warning}", markup=False)
    with tempfile.TemporaryDirectory(prefix="paceline-simulate-") as folder:
        asked, answer = Path(folder) / "request.json", Path(folder) / "result.json"
        asked.write_text(request.model_dump_json(by_alias=True, exclude_none=True), encoding="utf-8")
        command = [python.path, "-P", "-m", SIMULATOR, str(asked), str(answer)]
        # vLLM leaves files in the folder for temporary ones: this one goes when the simulation ends.
        environment = {**inherited(os.environ), "VLLM_LOGGING_LEVEL": "ERROR", "TMPDIR": folder}
        notice_console().print("simulating; vLLM's start takes most of the time", style="dim")
        try:
            done = subprocess.run(
                command,
                check=False,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SIMULATION_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise CliError(f"the simulation did not end within {SIMULATION_SECONDS} s") from None
        if done.returncode != 0 or not answer.exists():
            said = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode} and said nothing"]
            raise CliError(f"the simulation failed: {said[0]}")
        return SimulationResult.model_validate_json(answer.read_bytes())


def _save(model: Hardware, path: Path) -> None:
    document = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    try:
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", code=ExitCode.INVALID) from None
