"""The environment variables by which whoever starts an engine tells the plugin where its files and ports are."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

SETTINGS_FILE: Final = "PACELINE_SETTINGS_FILE"
ADMIN_HOST: Final = "PACELINE_ADMIN_HOST"
ADMIN_PORT: Final = "PACELINE_ADMIN_PORT"
ADMIN_TOKEN_FILE: Final = "PACELINE_ADMIN_TOKEN_FILE"
STALL_SECONDS: Final = "PACELINE_STALL_SECONDS"
DEFAULT_STALL_SECONDS: Final = 300.0
MIN_TOKEN_LENGTH: Final = 16


class StartError(RuntimeError):
    """The engine can't start as it was told to; the message says what to do."""


@dataclass(frozen=True)
class AdminConfig:
    """Where the admin port listens, the bearer token it wants, and after how long without a step it reports a stall."""

    host: str
    port: int
    token: str
    stall_seconds: float = DEFAULT_STALL_SECONDS

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """Read the admin port's configuration; None where no admin port was asked for. Raises StartError."""
        port = environ.get(ADMIN_PORT)
        if not port:
            return None
        return cls(
            host=environ.get(ADMIN_HOST) or "127.0.0.1",
            port=_port(port),
            token=_token(environ.get(ADMIN_TOKEN_FILE)),
            stall_seconds=_seconds(environ.get(STALL_SECONDS), DEFAULT_STALL_SECONDS),
        )


def settings_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file of the settings to start with; None where none was named."""
    name = environ.get(SETTINGS_FILE)
    return Path(name) if name else None


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise StartError(f"{ADMIN_PORT} is {text!r}: give a port between 1 and 65535")
    return int(text)


def _token(file: str | None) -> str:
    if not file:
        raise StartError(f"{ADMIN_TOKEN_FILE} is not set: the admin port never listens without a token")
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"the admin token can't be read from {ADMIN_TOKEN_FILE}={file}: {error}") from error
    if len(token) < MIN_TOKEN_LENGTH:
        raise StartError(f"the admin token in {file} has fewer than {MIN_TOKEN_LENGTH} characters")
    return token


def _seconds(text: str | None, default: float) -> float:
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise StartError(f"{STALL_SECONDS} is {text!r}: give a positive number of seconds")
    return seconds
