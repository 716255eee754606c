"""`paceline report`: what an experiment found, as tables and as a plot."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from paceline.bench.records import RequestRecord
from paceline.bench.report import text_report
from paceline.cli.apis import experiments_api
from paceline.cli.client import ApiClient
from paceline.cli.errors import CliError, ExitCode
from paceline.cli.output import notice_console, print_json
from paceline.control_api.schemas.experiments import ExperimentDetail, ExperimentStatus

EPILOG = """Examples:

  paceline report

  paceline report 0192f3c4a5b6 --plot rates.png

  paceline report latest --json > result.json

Exit status 1: the experiment has no result, or an audit says that its numbers can't be believed."""

REQUESTS_A_PAGE = 100


def report(
    identifier: Annotated[
        str, typer.Argument(metavar="[ID]", help="The experiment; the latest one that succeeded by default.")
    ] = "latest",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the residents' token rate into a PNG, SVG or PDF file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stored experiment as JSON.")] = False,
) -> None:
    """Print what a stored experiment found; works while nothing runs, too."""
    if plot is not None:
        check_plot_path(plot)
    with experiments_api() as client:
        detail, document = fetch(client, identifier, with_result=True)
        if as_json:
            print_json(document)
        show(client, detail, plot, quiet=as_json)


def fetch(client: ApiClient, identifier: str, *, with_result: bool = False) -> tuple[ExperimentDetail, dict[str, Any]]:
    """Return an experiment and its JSON document: for `latest` the latest, or the latest that succeeded.

    Raises CliError.
    """
    if identifier == "latest":
        wanted = {"status": ExperimentStatus.SUCCEEDED.value} if with_result else {}
        items = client.get("/v1/experiments", limit=1, **wanted)["items"]
        if not items:
            raise CliError(
                "no experiment is stored that ran to its end" if with_result else "no experiment is stored",
                advice="Run one with `paceline experiment run`.",
                code=ExitCode.NOT_FOUND,
            )
        identifier = items[0]["id"]
    document = client.get(f"/v1/experiments/{quote(identifier, safe='')}")
    return client.read(ExperimentDetail, document), document


def show(client: ApiClient, detail: ExperimentDetail, plot: Path | None, *, quiet: bool = False) -> None:
    """Print an experiment's tables, unless `quiet`, and draw its plot. Raises CliError where it has no result."""
    if plot is not None:
        draw(client, detail, plot)
        notice_console().print(f"plot saved as {plot}", markup=False)
    if detail.result is None:
        raise CliError(_no_result(detail), advice=_advice(detail))
    if not quiet:
        typer.echo(text_report(detail.plan, detail.result), nl=False)
    if not detail.trustworthy:
        raise CliError(
            f"the numbers of experiment {detail.id} can't be believed: an audit failed, or an arm does not count",
            advice="The tables above say which and why. Most often something else used the processor: end it, give the "
            "engine and the client a core each, and run the experiment again.",
        )


def draw(client: ApiClient, detail: ExperimentDetail, path: Path) -> None:
    """Draw the residents' token rate over time into a file. Raises CliError."""
    # Imported where it is needed: matplotlib would double the time that every other command takes to start.
    from paceline.bench.plot import rate_figure, save_plot

    records = []
    cursor: str | None = None
    while True:
        parameters: dict[str, str | int] = {"limit": REQUESTS_A_PAGE} | ({"cursor": cursor} if cursor else {})
        page = client.get(f"/v1/experiments/{detail.id}/requests", **parameters)
        records += [client.read(RequestRecord, item["record"]) for item in page["items"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    try:
        save_plot(rate_figure(detail.plan, detail.blocks, records), path)
    except ValueError as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", code=ExitCode.INVALID) from None


def check_plot_path(path: Path) -> None:
    """Check that a plot can be written to a path, before anything is measured. Raises CliError."""
    from paceline.bench.plot import FORMATS

    if path.suffix.removeprefix(".").lower() not in FORMATS:
        endings = ", ".join(f".{each}" for each in FORMATS)
        raise CliError(
            f"can't draw into {path}", advice=f"Give it one of the endings {endings}.", code=ExitCode.INVALID
        )
    if not path.absolute().parent.is_dir():
        raise CliError(f"there is no folder {path.absolute().parent}", code=ExitCode.INVALID)


def _no_result(detail: ExperimentDetail) -> str:
    if not detail.status.ended:
        return f"experiment {detail.id} has not ended: it is {detail.status.value.lower()}"
    why = f": {detail.failure}" if detail.failure else ""
    return f"experiment {detail.id} has no result, it was {detail.status.value.lower()}{why}"


def _advice(detail: ExperimentDetail) -> str:
    if not detail.status.ended:
        return f"Follow it with `paceline experiment show {detail.id} --follow`."
    if detail.status is ExperimentStatus.FAILED:
        return "The control API's log may tell more."
    return f"What it measured until then is kept: `paceline experiment show {detail.id}`."
