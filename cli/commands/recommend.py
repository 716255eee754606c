"""`paceline recommend`: the interval for a promise, from stored experiments."""

import math
from typing import Annotated, Final

import typer

from paceline.bench.plan import ExperimentPlan
from paceline.bench.recommend import Point, Recommendation, UnusableError, strictest
from paceline.bench.recommend import recommend as recommend_from
from paceline.bench.report import NOTHING, Table, text_table
from paceline.cli.apis import experiments_api
from paceline.cli.commands.report import fetch
from paceline.cli.durations import milliseconds
from paceline.cli.errors import CliError, ExitCode
from paceline.cli.output import OutputFormat, OutputOption, notice_console, print_json
from paceline.control_api.schemas.experiments import ExperimentDetail
from paceline.engine_ext.settings import SloSettings

EPILOG = """Examples:

  paceline recommend --slo 80ms

  paceline recommend --slo 80ms 0192f3c4a5b6 0192f3c4ffff

  paceline recommend --slo 120ms latest --output json | jq .interval

Of several experiments the strictest interval counts. Exit status 1: no interval keeps the promise."""

SPARE: Final = 2
"""How many times the expected wait SLO mode is allowed: a bound that is as short lets the prompt run unpaced."""
DEFAULT_DELAY_SECONDS: Final = SloSettings(time_per_output_token_milliseconds=1).max_prefill_delay_seconds
LONGEST_DELAY_SECONDS: Final = 3_600
"""The largest bound that the settings take."""


def recommend(
    slo: Annotated[
        str, typer.Option(metavar="DURATION", help="The promise: mean time per output token of a resident, as 80ms.")
    ],
    identifiers: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPERIMENT]...", help="Stored experiments; the latest by default.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Tell which fixed interval keeps a promise, what it costs the newcomer, and how wrong the formula was so far."""
    promise = milliseconds(slo)
    if not promise:
        raise typer.BadParameter("a promise of 0 ms can't be kept", param_hint="--slo")
    with experiments_api() as client:
        details = [fetch(client, identifier, with_result=True)[0] for identifier in identifiers or ["latest"]]
    found = [_of(detail, promise / 1_000) for detail in details]
    interval = strictest(found)
    for detail in details:
        if not detail.trustworthy:
            notice_console().print(
                f"warning: an audit of experiment {detail.id} failed; see `paceline report {detail.id}`", markup=False
            )
    if output is OutputFormat.JSON:
        print_json(
            {
                "promiseMilliseconds": promise,
                "interval": interval,
                "experiments": [_document(d, r) for d, r in zip(details, found, strict=True)],
            }
        )
    else:
        for detail, each in zip(details, found, strict=True):
            typer.echo(text_table(frontier_table(detail.id, _sized(detail), each, promise)) + "\n")
        waits = [each.recommended.wait for each in found if each.recommended and each.recommended.wait]
        typer.echo(conclusion(interval, promise, max(waits, default=None)))
    if interval is None:
        raise typer.Exit(ExitCode.FAILED)


def _of(detail: ExperimentDetail, seconds_per_token: float) -> Recommendation:
    if detail.result is None:
        raise CliError(f"experiment {detail.id} has no result", advice=f"See `paceline experiment show {detail.id}`.")
    try:
        return recommend_from(detail.plan, detail.result, seconds_per_token)
    except UnusableError as error:
        raise CliError(
            f"experiment {detail.id} can't be used: {error}",
            advice="Run one with `paceline experiment run --arm off --arm 4`.",
        ) from None


def _sized(detail: ExperimentDetail) -> ExperimentPlan:
    """Return the plan with the prompt's length that was run, where the plan gave a time."""
    if detail.result is None:
        return detail.plan
    workload = detail.plan.workload.sized(detail.result.arms[0].injected_prompt_tokens)
    return detail.plan.model_copy(update={"workload": workload})


def frontier_table(identifier: str, plan: ExperimentPlan, found: Recommendation, promise: int) -> Table:
    """Return the frontier of one experiment: predicted and measured, and the prediction's error."""
    answer = found.recommended
    interval = f"N = {found.interval}" if found.interval else "no interval"
    notes = [f"for {promise} ms a token: {interval}; {found.reason}"]
    if answer is not None and answer.rate and answer.wait:
        unpaced = next((p.measured_wait for p in found.frontier if p.interval == 1 and p.measured_wait), None)
        instead = f" instead of {unpaced:.1f} s" if unpaced else ""
        notes.append(
            f"expected under N = {found.interval}: {answer.rate:.1f} tok/s, {1_000 / answer.rate:.0f} ms a token for "
            f"each resident, and a wait of {answer.wait:.1f} s{instead} for the prompt"
        )
    if found.margin and found.plain_interval:
        notes.append(
            f"margin: the formula was {found.margin:.1%} too hopeful at worst; without it N = {found.plain_interval}"
        )
    return Table(
        title=f"experiment {identifier}: {plan.name}, {plan.workload.describe()}",
        headings=(
            "arm",
            "predicted\ntok/s",
            "measured\ntok/s",
            "error",
            "predicted\nTTFT (s)",
            "measured\nTTFT (s)",
            "error ",
        ),
        rows=tuple(_row(point, chosen=point is found.recommended) for point in found.frontier),
        notes=tuple(notes),
    )


def _row(point: Point, *, chosen: bool) -> tuple[str, ...]:
    return (
        ("> " if chosen else "  ") + point.arm,
        _cell(point.rate, ".1f"),
        _cell(point.measured_rate, ".1f"),
        _cell(point.rate_error, "+.1%"),
        _cell(point.wait, ".2f"),
        _cell(point.measured_wait, ".2f"),
        _cell(point.wait_error, "+.1%"),
    )


def _cell(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def conclusion(interval: int | None, promise: int, wait: float | None = None) -> str:
    """Return what to do; `wait` is what the prompt is expected to wait, in seconds, which SLO mode must allow."""
    if interval is None:
        return f"no interval keeps {promise} ms a token: allow more milliseconds, or make the engine faster"
    if interval == 1:
        return (
            f"{promise} ms a token need no pacing here: `paceline pace NAME --mode Disabled` serves newcomers soonest"
        )
    bound = min(LONGEST_DELAY_SECONDS, math.ceil(SPARE * (wait or 0.0)))
    delay = f" --max-prefill-delay {bound}s" if bound > DEFAULT_DELAY_SECONDS else ""
    return (
        f"recommended: `paceline pace NAME --interval {interval}`, or `paceline pace NAME --slo {promise}ms{delay}`, "
        "which follows the load"
    )


def _document(detail: ExperimentDetail, found: Recommendation) -> dict[str, object]:
    return {
        "id": detail.id,
        "interval": found.interval,
        "plainInterval": found.plain_interval,
        "margin": found.margin,
        "reason": found.reason,
        "frontier": [
            {
                "arm": point.arm,
                "interval": point.interval,
                "predicted": {"residentTokensPerSecond": point.rate, "timeToFirstTokenSeconds": point.wait},
                "measured": {
                    "residentTokensPerSecond": point.measured_rate,
                    "timeToFirstTokenSeconds": point.measured_wait,
                },
                "error": {"residentTokensPerSecond": point.rate_error, "timeToFirstTokenSeconds": point.wait_error},
            }
            for point in found.frontier
        ],
    }
