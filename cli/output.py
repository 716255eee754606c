"""Where commands print: results on standard output, everything else on standard error."""

import json
import os
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline.cli.errors import CliError

PIPE_COLUMNS = 200
"""Width of the output in a pipe, where no terminal limits it: wide enough that no table cell is cut."""


class OutputFormat(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print the result.")]


def result_console() -> Console:
    """Return the console for results; in a pipe it is wide and without colours."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_COLUMNS, highlight=False)


def notice_console() -> Console:
    """Return the console for progress, warnings and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """Print a document as indented JSON."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table in the house style."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_error(error: CliError) -> None:
    """Tell a fault, and below it what to do."""
    console = notice_console()
    console.print(f"[bold red]error:[/] {_plain(error.message)}")
    if error.advice:
        console.print(_plain(error.advice))


def _plain(text: str) -> str:
    # Square brackets in messages (list indices, IPv6 addresses) are no markup.
    return text.replace("[", "\\[")
