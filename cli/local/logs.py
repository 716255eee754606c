"""Reads the log files of the children."""

from pathlib import Path
from typing import Final, Self

LOG_TAIL_BYTES: Final = 256 * 1024
"""How much of the end of a log is looked at."""


class LogTail:
    """Reads a growing log file line by line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._part = b""

    def lines(self) -> list[str]:
        """Return the whole lines written since the last call."""
        *lines, self._part = (self._part + self._file.read()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def last_lines(log: Path) -> list[str]:
    """Return the lines at the end of a log file, oldest first; none without the file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
