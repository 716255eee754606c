"""A running profile's live settings over the control API: asked for, changed, and waited for, whichever they are."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

import typer

from paceline.cli.client import ApiClient
from paceline.cli.durations import milliseconds
from paceline.cli.errors import CliError
from paceline.cli.instance import api_of
from paceline.cli.output import OutputFormat, print_json, result_console
from paceline.control_api.profiles.base import COMMANDS, Part
from paceline.engine_ext.settings import LiveModel

WaitOption = Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the engines.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="In a cluster: take fields over from a tool that declares them.")
]


@dataclass(frozen=True)
class Request:
    """Which part (`pacing`, `coalescing`) of which profile is meant, and how a change of it is made."""

    name: str
    part: Part
    wait: str
    force: bool


@dataclass(frozen=True)
class Outcome:
    """What the control API answered; `seconds` is how long a change took, None where nothing was to be changed."""

    request: Request
    key: str
    document: dict[str, Any]
    seconds: float | None
    pending: bool


def ask(request: Request, change: Callable[[dict[str, Any]], LiveModel] | None) -> Outcome:
    """Read the settings, and change them to what `change` makes of them; without it, only read them."""
    wait_milliseconds = milliseconds(request.wait)
    key, address = api_of(request.name)
    path, seconds = f"/v1/profiles/{key}/{request.part}", None
    with ApiClient(address) as client:
        response = client.send("GET", path)
        if change is not None:
            started = time.monotonic()
            wanted = change(response.json()[request.part])
            response = client.send(
                "PUT",
                path,
                json=wanted.model_dump(mode="json", by_alias=True, exclude_none=True),
                params={"wait": f"{wait_milliseconds}ms", **({"force": "true"} if request.force else {})},
                headers={"If-Match": response.headers["ETag"]} if "ETag" in response.headers else {},
                timeout=wait_milliseconds / 1_000 + 10,
            )
            seconds = time.monotonic() - started
    document = response.json()
    pending = response.status_code == HTTPStatus.ACCEPTED or not document["applied"]
    return Outcome(request, key, document, seconds, pending)


def show(outcome: Outcome, in_words: str, output: OutputFormat) -> None:
    """Print the settings and their revision. Raises CliError, with exit status 1, where an engine lags behind."""
    document = outcome.document
    if output is OutputFormat.JSON:
        print_json(document)
    elif document["applied"]:
        took = "" if outcome.seconds is None else f", applied after {outcome.seconds * 1_000:.0f} ms"
        result_console().print(f"{outcome.key}: {in_words} (revision {document['revision']}{took})", markup=False)
    if outcome.pending:
        raise _pending(outcome)


def _pending(outcome: Outcome) -> CliError:
    document = outcome.document
    lagging = [
        f"  {engine['name']}: revision {engine['revision']}" + (f", {engine['message']}" if engine["message"] else "")
        for engine in document["engines"]
        if not engine["applied"]
    ]
    lines = "\n".join(lagging) or "  no engine answers"
    again = COMMANDS[outcome.request.part]
    return CliError(
        f"{outcome.key}: revision {document['revision']} is stored, but not on every engine after "
        f"{outcome.request.wait}:\n{lines}",
        advice=f"It is applied as soon as they answer; look again with `paceline {again} {outcome.key}`.",
    )
