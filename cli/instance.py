"""Finds the control API that a command speaks to: a local run in the state folder, or the one that is named."""

import os
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import psutil

from paceline.cli.errors import CliError, ExitCode
from paceline.cli.local.lock import is_locked
from paceline.cli.local.state import ProfileState, RunRecord, known_profiles, state_root

URL_VARIABLE: Final = "PACELINE_API_URL"
TOKEN_VARIABLE: Final = "PACELINE_API_TOKEN_FILE"
CLOCK_SLACK_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ApiAddress:
    """A control API and the bearer token that it takes."""

    url: str
    token: str


class Phase(StrEnum):
    """How far a local run is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


def phase_of(state: ProfileState, run: RunRecord | None) -> Phase:
    """Return how far the run of a profile is."""
    if not is_locked(state.lock):
        return Phase.STOPPED
    if run is None:
        return Phase.STARTING
    if not _alive(run):
        return Phase.STOPPING
    return Phase.RUNNING if run.ready_at else Phase.STARTING


def _alive(run: RunRecord) -> bool:
    # The lock may be held by guards that outlive a killed `up`, whose process id then belongs to nobody, or to another.
    try:
        process = psutil.Process(run.up_pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        born = process.create_time()
    except psutil.NoSuchProcess:
        return False
    return born <= datetime.fromisoformat(run.started_at).timestamp() + CLOCK_SLACK_SECONDS


def split_key(name: str) -> tuple[str, str]:
    """Return namespace and name of `NAME` or `NAMESPACE/NAME`. Raises CliError."""
    namespace, slash, rest = name.partition("/")
    if not slash:
        namespace, rest = "default", name
    if not namespace or not rest or "/" in rest or ".." in (namespace, rest):
        raise CliError(f"{name!r} is no profile's name", advice="Write NAME or NAMESPACE/NAME.", code=ExitCode.INVALID)
    return namespace, rest


def local_state(name: str) -> ProfileState:
    """Return the state folder of a profile that was started here at some time. Raises CliError."""
    namespace, rest = split_key(name)
    state = ProfileState(state_root(), namespace, rest)
    if not state.lock.exists():
        known = ", ".join(each.key for each in known_profiles(state.root))
        raise CliError(
            f"no profile {state.key} was ever started here",
            advice=f"Known here: {known}." if known else "Start one with `paceline up PROFILE.yaml`.",
            code=ExitCode.NOT_FOUND,
        )
    return state


def remote_api() -> ApiAddress | None:
    """Return the control API that the environment names, if it does. Raises CliError."""
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise CliError(f"{URL_VARIABLE} is {url!r}, expected http://... or https://...", code=ExitCode.INVALID)
    file = os.environ.get(TOKEN_VARIABLE)
    if not file:
        raise CliError(
            f"{URL_VARIABLE} is set but {TOKEN_VARIABLE} is not",
            advice=f"Set {TOKEN_VARIABLE} to the file that holds the API's bearer token.",
            code=ExitCode.INVALID,
        )
    return ApiAddress(url.rstrip("/"), _token(Path(file)))


def api_of(name: str) -> tuple[str, ApiAddress]:
    """Return a profile's key and the control API that serves it. Raises CliError."""
    if remote := remote_api():
        return "/".join(split_key(name)), remote
    state = local_state(name)
    run = state.read_run()
    phase = phase_of(state, run)
    if run is None or phase is not Phase.RUNNING:
        what = "is not running" if phase is Phase.STOPPED else f"is {phase}"
        advice = "Start it with `paceline up PROFILE.yaml`." if phase is Phase.STOPPED else "Try again in some seconds."
        raise CliError(f"{state.key} {what}", advice=advice, code=ExitCode.NOT_FOUND)
    return state.key, local_api(run)


def running_profiles() -> list[tuple[ProfileState, RunRecord]]:
    """Return the local profiles that run now."""
    found = []
    for state in known_profiles(state_root()):
        run = state.read_run()
        if run is not None and phase_of(state, run) is Phase.RUNNING:
            found.append((state, run))
    return found


def local_api(run: RunRecord) -> ApiAddress:
    """Return the control API of a local run. Raises CliError."""
    return ApiAddress(run.api_url, _token(Path(run.api_token_file)))


def _token(file: Path) -> str:
    try:
        token = file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise CliError(f"cannot read the token file {file}: {error.strerror}", code=ExitCode.INVALID) from None
    if not token.isascii() or not token.isprintable():
        raise CliError(
            f"the token file {file} holds no token: expected one line of printable ASCII", code=ExitCode.INVALID
        )
    return token
