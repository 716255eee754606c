"""The `paceline` program: its commands, and how faults are told."""

import sys
from typing import Annotated

import typer

from paceline import __version__
from paceline.cli.commands import coalesce, crd, down, experiment, pace, plan, recommend, report, simulate, status, up
from paceline.cli.errors import CliError
from paceline.cli.output import print_error

EPILOG = """Exit statuses: 0 done; 1 something failed; 2 the input isn't valid; 3 busy: already running, or a port is in
use; 4 no such profile, experiment or file; 130 interrupted.

The commands find a local run by its name in the state folder ($PACELINE_STATE_DIR, else ~/.local/state/paceline). To
use another control API, set PACELINE_API_URL and PACELINE_API_TOKEN_FILE."""

app = typer.Typer(
    name="paceline",
    help="Paced prefills for vLLM: run a profile, change its pacing live, measure what the change did.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


app.command(epilog=up.EPILOG)(up.up)
app.command(epilog=down.EPILOG)(down.down)
app.command(epilog=status.EPILOG)(status.status)
app.command(epilog=pace.EPILOG)(pace.pace)
app.command(epilog=coalesce.EPILOG)(coalesce.coalesce)
app.command(epilog=plan.EPILOG)(plan.plan)
app.add_typer(experiment.app, name="experiment")
app.command(epilog=report.EPILOG)(report.report)
app.command(epilog=recommend.EPILOG)(recommend.recommend)
app.command(epilog=simulate.EPILOG)(simulate.simulate)
app.command(epilog=crd.EPILOG)(crd.crd)


def main() -> None:
    """Run the program; it exits with one of the statuses of ExitCode."""
    try:
        app(prog_name="paceline")
    except CliError as error:
        # What was printed so far comes first, also where both streams end in one file.
        sys.stdout.flush()
        print_error(error)
        sys.exit(error.code)
