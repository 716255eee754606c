"""Durations as users write them."""

import pytest
import typer

from paceline.cli.durations import milliseconds, whole_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80ms", 80), ("0.08s", 80), ("5s", 5_000), ("1.5m", 90_000), ("2h", 7_200_000), (" 1 s ", 1_000), ("0ms", 0)],
)
def test_durations_in_milliseconds(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize("text", ["80", "ms", "-1s", "1e3s", "1s2", "0.5ms", "", "5 sec"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        milliseconds(text)


def test_whole_seconds() -> None:
    assert whole_seconds("1m") == 60
    with pytest.raises(typer.BadParameter, match="whole seconds"):
        whole_seconds("80ms")
