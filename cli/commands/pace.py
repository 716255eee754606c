"""`paceline pace`: change how a running profile paces its prefills."""

from typing import Annotated, Any

import typer
from pydantic import ValidationError

from paceline.cli import live
from paceline.cli.durations import milliseconds, whole_seconds
from paceline.cli.errors import CliError, ExitCode
from paceline.cli.output import OutputFormat, OutputOption
from paceline.cli.words import describe_pacing
from paceline.engine_ext.settings import MAX_INTERVAL_STEPS, PacingMode, PacingSettings, SloPrecedence, SloSettings

EPILOG = """Examples:

  paceline pace cpu-tiny                       show the pacing

  paceline pace cpu-tiny --interval 4          a prefill chunk in at most one of 4 steps

  paceline pace cpu-tiny --slo 80ms --max-prefill-delay 30s

  paceline pace team/qwen --mode Disabled --wait 10s

Exit status 1: some engine does not run the new pacing yet; it is named."""


def pace(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile: NAME or NAMESPACE/NAME.")],
    interval: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_INTERVAL_STEPS,
            help="Steps between two that carry prefill (0 and 1: every step may); implies mode Fixed.",
        ),
    ] = None,
    mode: Annotated[
        PacingMode | None,
        typer.Option(metavar="Disabled|Fixed|SLO", case_sensitive=False, help="How prefill chunks are released."),
    ] = None,
    slo: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time per output token to keep, as 80ms; implies mode SLO.")
    ] = None,
    max_prefill_delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With SLO: the longest a prompt may wait, as 60s.")
    ] = None,
    precedence: Annotated[
        SloPrecedence | None,
        typer.Option(
            metavar="PrefillDelay|OutputTokenTime", case_sensitive=False, help="With SLO: which promise wins."
        ),
    ] = None,
    wait: live.WaitOption = "5s",
    force: live.ForceOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show or change the pacing of a running profile; no request is lost, and nothing restarts."""
    changes = _changes(interval, mode, slo, max_prefill_delay, precedence)
    outcome = live.ask(
        live.Request(name, "pacing", wait, force),
        (lambda current: _merged(PacingSettings.model_validate(current), changes)) if changes else None,
    )
    live.show(outcome, describe_pacing(PacingSettings.model_validate(outcome.document["pacing"])), output)


def _changes(
    interval: int | None,
    mode: PacingMode | None,
    slo: str | None,
    max_prefill_delay: str | None,
    precedence: SloPrecedence | None,
) -> dict[str, Any]:
    promise: dict[str, Any] = {}
    if slo is not None:
        promise["timePerOutputTokenMilliseconds"] = milliseconds(slo)
        _check_bounds(promise, "--slo", "milliseconds")
    if max_prefill_delay is not None:
        delay = {"maxPrefillDelaySeconds": whole_seconds(max_prefill_delay)}
        _check_bounds({"timePerOutputTokenMilliseconds": 1, **delay}, "--max-prefill-delay", "seconds")
        promise |= delay
    if precedence is not None:
        promise["precedence"] = precedence.value
    if interval is not None and promise:
        raise typer.BadParameter("--interval belongs to mode Fixed, --slo to mode SLO: give one of them")
    changes: dict[str, Any] = {}
    if interval is not None:
        changes |= {"mode": PacingMode.FIXED.value, "interval": interval}
    if promise:
        changes |= {"mode": PacingMode.SLO.value, "slo": promise}
    if mode is not None:
        if changes and changes["mode"] != mode.value:
            raise typer.BadParameter(f"the options given belong to mode {changes['mode']}, not to {mode.value}")
        changes["mode"] = mode.value
    return changes


def _check_bounds(promise: dict[str, Any], option: str, unit: str) -> None:
    try:
        SloSettings.model_validate(promise)
    except ValidationError as error:
        raise typer.BadParameter(f"{error.errors()[0]['msg']} {unit}", param_hint=option) from None


def _merged(current: PacingSettings, changes: dict[str, Any]) -> PacingSettings:
    document = current.model_dump(mode="json", by_alias=True, exclude_none=True)
    promise = {**document.get("slo", {}), **changes.get("slo", {})}
    document |= changes | ({"slo": promise} if promise else {})
    try:
        return PacingSettings.model_validate(document)
    except ValidationError as error:
        message = "; ".join(str(details["msg"]).removeprefix("Value error, ") for details in error.errors())
        raise CliError(
            f"this pacing is not valid: {message}", advice="Give the promise, as in --slo 80ms.", code=ExitCode.INVALID
        ) from None
