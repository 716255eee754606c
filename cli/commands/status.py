"""`paceline status`: what runs, and what it runs with."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from paceline.cli.client import ApiClient
from paceline.cli.errors import CliError
from paceline.cli.instance import ApiAddress, Phase, local_api, local_state, phase_of, remote_api, split_key
from paceline.cli.local.state import ProfileState, RunRecord, known_profiles, state_root
from paceline.cli.output import OutputFormat, OutputOption, notice_console, print_json, result_console, table
from paceline.cli.words import describe_coalescing, describe_pacing
from paceline.engine_ext.settings import CoalescingSettings, PacingSettings

EPILOG = """Examples:

  paceline status

  paceline status cpu-tiny

  paceline status --output json

Exit status 1: a profile that runs does not answer, or its engine lags behind its settings."""


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One profile in detail: NAME or NAMESPACE/NAME.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the profiles that run, their addresses, and the pacing that their engines really use."""
    rows = _remote(remote, name) if (remote := remote_api()) else _local(name)
    if output is OutputFormat.JSON:
        print_json(rows[0] if name else rows)
    elif name:
        _print_one(rows[0])
    elif rows:
        _print_all(rows)
    else:
        notice_console().print("no profile was ever started here; start one with `paceline up PROFILE.yaml`")
    if any(row.get("problem") or row.get("applied") is False for row in rows):
        raise typer.Exit(1)


def _local(name: str | None) -> list[dict[str, Any]]:
    states = [local_state(name)] if name else known_profiles(state_root())
    return [_local_row(state) for state in states]


def _local_row(state: ProfileState) -> dict[str, Any]:
    run = state.read_run()
    phase = phase_of(state, run)
    row: dict[str, Any] = {"name": state.key, "phase": phase.value, "folder": str(state.folder)}
    if run is None or phase is Phase.STOPPED:
        return row
    row |= _run_columns(run)
    if phase is Phase.RUNNING:
        try:
            with ApiClient(local_api(run)) as client:
                row |= _live_columns(client.get(f"/v1/profiles/{state.key}"))
        except CliError as error:
            row["problem"] = error.message
    return row


def _run_columns(run: RunRecord) -> dict[str, Any]:
    return {
        "model": run.served_model,
        "openaiUrl": f"{run.engine_url}/v1",
        "apiUrl": run.api_url,
        "tokenFile": run.api_token_file,
        "upPid": run.up_pid,
        "enginePid": run.engine_pid,
        "apiPid": run.api_pid,
        "startedAt": run.started_at,
        "readyAt": run.ready_at,
    }


def _remote(address: ApiAddress, name: str | None) -> list[dict[str, Any]]:
    with ApiClient(address) as client:
        if name:
            views = [client.get("/v1/profiles/" + "/".join(split_key(name)))]
        else:
            views = client.get("/v1/profiles")["items"]
    return [
        {"name": f"{view['namespace']}/{view['name']}", "phase": Phase.RUNNING.value, "apiUrl": address.url}
        | _live_columns(view)
        for view in views
    ]


def _live_columns(view: dict[str, Any]) -> dict[str, Any]:
    live = view["status"]
    return {
        "model": view["model"],
        "pacing": view["profile"]["spec"]["pacing"],
        "coalescing": live["coalescing"],
        "revision": live["revision"],
        "applied": live["applied"],
        "engines": live["engines"],
    }


def _pacing(row: dict[str, Any]) -> str:
    return describe_pacing(PacingSettings.model_validate(row["pacing"])) if "pacing" in row else "-"


def _coalescing(row: dict[str, Any]) -> str:
    return describe_coalescing(CoalescingSettings.model_validate(row["coalescing"]))


def _print_all(rows: list[dict[str, Any]]) -> None:
    made = table("NAME", "PHASE", "MODEL", "PACING", "REVISION", "OPENAI API", "CONTROL API", "AGE")
    for row in rows:
        revision = str(row.get("revision", "-")) + ("" if row.get("applied", True) else " (not applied)")
        made.add_row(
            row["name"],
            "not answering" if "problem" in row else row["phase"],
            row.get("model", "-"),
            _pacing(row),
            revision,
            row.get("openaiUrl", "-"),
            row.get("apiUrl", "-"),
            _age(row.get("startedAt")),
        )
    result_console().print(made)


def _print_one(row: dict[str, Any]) -> None:
    made = table("", "")
    made.show_header = False
    lines = {
        "Name": row["name"],
        "Phase": row["phase"],
        "Problem": row.get("problem"),
        "Model": row.get("model"),
        "Pacing": _pacing(row) if "pacing" in row else None,
        "Coalescing": _coalescing(row) if "coalescing" in row else None,
        "Revision": row.get("revision"),
        "OpenAI API": row.get("openaiUrl"),
        "Control API": row.get("apiUrl"),
        "Token file": row.get("tokenFile"),
        "Processes": _processes(row),
        "State folder": row.get("folder"),
        "Age": _age(row["startedAt"]) if "startedAt" in row else None,
    }
    for what, value in lines.items():
        if value is not None:
            made.add_row(what, str(value))
    for engine in row.get("engines", ()):
        made.add_row(f"Engine {engine['name']}", _engine(engine))
        if engine.get("uncoalesced"):
            made.add_row("Not coalesced", engine["uncoalesced"])
        if engine.get("pageGate"):
            made.add_row("Page gate", engine["pageGate"])
    result_console().print(made)


def _processes(row: dict[str, Any]) -> str | None:
    pids = {"up": row.get("upPid"), "engine": row.get("enginePid"), "api": row.get("apiPid")}
    return ", ".join(f"{what} {pid}" for what, pid in pids.items() if pid) or None


def _engine(engine: dict[str, Any]) -> str:
    said = [
        "does not answer" if engine["revision"] is None else f"revision {engine['revision']}",
        "" if engine["applied"] else "not applied",
        engine["message"] or "",
    ]
    return ", ".join(part for part in said if part)


def _age(started_at: str | None) -> str:
    if started_at is None:
        return "-"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(started_at)).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{max(0, seconds)}s"
