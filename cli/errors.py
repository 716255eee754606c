"""Faults that a user can do something about: told in one line on standard error, with what to do."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit statuses of every command, as `paceline --help` lists them."""

    OK = 0
    FAILED = 1
    INVALID = 2
    BUSY = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


class CliError(Exception):
    """A fault with the advice that goes with it; `main` prints both and exits with `code`."""

    def __init__(self, message: str, *, advice: str | None = None, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.code = code
