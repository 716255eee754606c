"""`paceline up`: one profile on this machine, engine and control API together, until Ctrl-C."""

from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from paceline.cli.errors import CliError, ExitCode
from paceline.cli.local.launch import Addresses, Placement, plan_launch
from paceline.cli.local.lock import AlreadyLockedError, InstanceLock
from paceline.cli.local.ports import PortRequest
from paceline.cli.local.preflight import check_model, choose_ports, find_engine_python, ignored_fields
from paceline.cli.local.signals import StopSignals
from paceline.cli.local.state import ProfileState, RunRecord, ensure_token, next_settings, state_root, write_atomically
from paceline.cli.local.supervisor import RunFailedError, Supervisor
from paceline.cli.output import OutputFormat, OutputOption, notice_console, print_json, result_console
from paceline.cli.profile_file import load_profile
from paceline.cli.words import describe_pacing
from paceline.operator.api.v1alpha1 import InferenceProfile

EPILOG = """Examples:

  paceline up my-profile.yaml

  paceline up my-profile.yaml --engine-python ~/vllm/bin/python --port 8100

  paceline up my-profile.yaml --port 0 --admin-port 0 --api-port 0 --output json

Ctrl-C (or SIGTERM) stops everything and exits with 0; a second one stops at once and exits with 130.
Exit status 1: the engine or the control API ended. 2: the profile or the machine isn't fit to start.
3: already running, or a port is in use."""


def up(
    profile_file: Annotated[Path, typer.Argument(metavar="PROFILE.yaml", help="The profile to run.")],
    engine_python: Annotated[
        Path | None,
        typer.Option(
            help="The interpreter that has vLLM. [default: $PACELINE_ENGINE_PYTHON, else .venv-engine-0.32 of the "
            "checkout, else the one that runs this command]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address that the engine's OpenAI API listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Its port; 0 takes any free one.")] = 8000,
    admin_port: Annotated[int, typer.Option(min=0, max=65_535, help="The engine's admin port, on loopback.")] = 8600,
    api_port: Annotated[int, typer.Option(min=0, max=65_535, help="The control API's port, on loopback.")] = 8700,
    start_timeout: Annotated[int, typer.Option(min=1, help="Seconds until a start counts as failed.")] = 3600,
    stop_grace: Annotated[
        int, typer.Option(min=0, help="Seconds that a stopping engine may take before it is killed.")
    ] = 20,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a profile on this machine: a paced vLLM engine and the control API beside it."""
    console = notice_console()
    profile = load_profile(profile_file)
    check_model(profile.spec)
    state = ProfileState(state_root(), profile.metadata.namespace, profile.metadata.name)
    state.create()
    lock = _lock(state)
    # A run that was killed left its file behind: from here on it would name the wrong process.
    state.forget_run()
    ports = choose_ports(
        {
            "engine": PortRequest("the engine's OpenAI API", "--port", host, port),
            "admin": PortRequest("the engine's admin server", "--admin-port", "127.0.0.1", admin_port),
            "api": PortRequest("the control API", "--api-port", "127.0.0.1", api_port),
        }
    )
    python = find_engine_python(engine_python)
    for warning in (*ignored_fields(profile.spec), *([python.warning] if python.warning else [])):
        console.print(f"warning: {warning}", markup=False)
    _write_state(state, profile, console)
    addresses = Addresses(host, ports["engine"], ports["admin"], ports["api"])
    placement = Placement(python.path, str(profile_file.absolute()), float(start_timeout), float(stop_grace))
    launch = plan_launch(state, profile, addresses, placement)

    def announce(record: RunRecord, seconds: float) -> None:
        if output is OutputFormat.JSON:
            print_json({**record.model_dump(mode="json", by_alias=True), "readyAfterSeconds": round(seconds, 1)})
        else:
            _print_ready(state, profile, record, seconds)

    with StopSignals() as signals:
        try:
            orderly = Supervisor(launch, lock, signals, console, announce).run()
        except RunFailedError as failure:
            raise _failed(failure) from None
    console.print("stopped", markup=False)
    if not orderly:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _lock(state: ProfileState) -> InstanceLock:
    try:
        return InstanceLock(state.lock).acquire()
    except AlreadyLockedError:
        pass
    run = state.read_run()
    if run is None:
        raise CliError(
            f"{state.key} is just starting or stopping",
            advice="Try again in some seconds.",
            code=ExitCode.BUSY,
        )
    raise CliError(
        f"{state.key} is already running: process {run.up_pid}, OpenAI API {run.engine_url}/v1, "
        f"control API {run.api_url}",
        advice=f"Look at it with `paceline status {state.key}`; stop it with `paceline down {state.key}`.",
        code=ExitCode.BUSY,
    )


def _write_state(state: ProfileState, profile: InferenceProfile, console: Console) -> None:
    ensure_token(state.api_token_file)
    ensure_token(state.admin_token_file)
    for log in (state.engine_log, state.api_log):
        if log.exists():
            log.replace(log.with_name(f"{log.name}.1"))
    document = profile.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["metadata"]["namespace"] = profile.metadata.namespace
    write_atomically(state.profile_file, yaml.safe_dump(document, sort_keys=False))
    last = state.read_settings()
    settings = next_settings(profile.spec, last)
    now, before = describe_pacing(settings.pacing), describe_pacing(last.pacing) if last else None
    if before not in (None, now):
        console.print(
            f"note: starting with the profile's pacing, {now}; the last run ended with {before}", markup=False
        )
    state.write_settings(settings)


def _print_ready(state: ProfileState, profile: InferenceProfile, record: RunRecord, seconds: float) -> None:
    out = result_console()
    out.print(
        f"[bold green]ready[/] after {seconds:.0f} s: {state.key}, model {record.served_model}, "
        f"pacing {describe_pacing(profile.spec.pacing)}"
    )
    for what, where in (
        ("OpenAI API", f"{record.engine_url}/v1"),
        ("Control API", f"{record.api_url}/v1"),
        ("Dashboard", f"{record.api_url}/"),
        ("Token file", record.api_token_file),
        ("Engine log", state.engine_log),
        ("API log", state.api_log),
    ):
        out.print(f"  {what:<12} {where}", soft_wrap=True, markup=False)
    out.print("Try, in another terminal:")
    for command in (
        f"paceline pace {state.key} --interval 4",
        f"paceline status {state.key}",
        f"paceline experiment run {state.key} --arm off --arm 4",
        f"curl -H \"Authorization: Bearer $(cat '{record.api_token_file}')\" {record.api_url}/v1/profiles",
    ):
        out.print(f"  {command}", soft_wrap=True, markup=False)
    out.print("Ctrl-C stops everything.")


def _failed(failure: RunFailedError) -> CliError:
    diagnosis = failure.diagnosis
    lines = "\n".join(f"  | {line}" for line in diagnosis.lines)
    said = f"\nThe end of {failure.log}:\n{lines}" if lines else f"\nIts log, {failure.log}, is empty."
    return CliError(f"{diagnosis.summary}{said}", advice=diagnosis.advice)
