"""Durations as users write them: `80ms`, `5s`, `1.5m`."""

import re
from decimal import Decimal
from typing import Final

import typer

_UNITS: Final = {"ms": Decimal(1), "s": Decimal(1_000), "m": Decimal(60_000), "h": Decimal(3_600_000)}
_DURATION: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h)")


def milliseconds(text: str) -> int:
    """Return a duration in whole milliseconds. Raises typer.BadParameter."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration: write a number and its unit, as in 80ms, 5s or 1.5m")
    value = Decimal(match["number"]) * _UNITS[match["unit"]]
    if value != value.to_integral_value():
        raise typer.BadParameter(f"{text!r} is finer than a millisecond")
    return int(value)


def whole_seconds(text: str) -> int:
    """Return a duration in whole seconds. Raises typer.BadParameter."""
    value = milliseconds(text)
    if value % 1_000:
        raise typer.BadParameter(f"{text!r} must be whole seconds, as in 5s or 1m")
    return value // 1_000
