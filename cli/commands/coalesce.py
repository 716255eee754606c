"""`paceline coalesce`: switch the coalescing of final chunks on a running profile."""

from typing import Annotated, Any

import typer

from paceline.cli import live
from paceline.cli.output import OutputFormat, OutputOption, result_console
from paceline.cli.words import describe_coalescing
from paceline.engine_ext.settings import (
    MAX_SPAN_TOKENS,
    MIN_SPAN_TOKENS,
    CoalescingAdmission,
    CoalescingSettings,
    FinalChunk,
)

EPILOG = """Examples:

  paceline coalesce hybrid                     show whether final chunks are coalesced

  paceline coalesce hybrid --final-chunk Enabled

  paceline coalesce hybrid --admission Exclusive --max-span-tokens 16384

Exit status 1: some engine does not run the new settings yet; it is named."""


def coalesce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile: NAME or NAMESPACE/NAME.")],
    final_chunk: Annotated[
        FinalChunk | None,
        typer.Option(
            metavar="Enabled|Disabled", case_sensitive=False, help="Whether a prompt's last part runs in one pass."
        ),
    ] = None,
    admission: Annotated[
        CoalescingAdmission | None,
        typer.Option(
            metavar="SinglePrefill|Exclusive",
            case_sensitive=False,
            help="Beside decoders while one prompt prefills, or only while the prompt is alone.",
        ),
    ] = None,
    max_span_tokens: Annotated[
        int | None,
        typer.Option(min=MIN_SPAN_TOKENS, max=MAX_SPAN_TOKENS, help="A longer last part is split as vLLM does."),
    ] = None,
    wait: live.WaitOption = "5s",
    force: live.ForceOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show or change the coalescing of a running profile's final chunks; no request is lost, and nothing restarts."""
    given = {"finalChunk": final_chunk, "admission": admission, "maxSpanTokens": max_span_tokens}
    changes = {field: value for field, value in given.items() if value is not None}

    def changed(current: dict[str, Any]) -> CoalescingSettings:
        return CoalescingSettings.model_validate(current | changes)

    outcome = live.ask(live.Request(name, "coalescing", wait, force), changed if changes else None)
    live.show(outcome, describe_coalescing(CoalescingSettings.model_validate(outcome.document["coalescing"])), output)
    if output is OutputFormat.TABLE:
        for engine in outcome.document["engines"]:
            if engine["uncoalesced"]:
                result_console().print(
                    f"  {engine['name']} coalesces nothing: {engine['uncoalesced']}", markup=False, soft_wrap=True
                )
