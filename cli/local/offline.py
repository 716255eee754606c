"""A control API for the moment of one command, to read stored experiments while nothing runs."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from paceline.cli.errors import CliError, ExitCode
from paceline.cli.instance import ApiAddress
from paceline.cli.local.diagnose import diagnose
from paceline.cli.local.launch import api_environment, inherited
from paceline.cli.local.logs import last_lines
from paceline.cli.local.ports import PortRequest, choose_port
from paceline.cli.local.process import Child
from paceline.cli.local.readiness import answers
from paceline.cli.local.state import known_profiles, state_root

START_SECONDS: Final = 60.0


@contextmanager
def offline_api() -> Iterator[ApiAddress]:
    """Serve the experiments that are stored in the state folder. Raises CliError where there are none."""
    root = state_root()
    usable = [state for state in known_profiles(root) if state.profile_file.exists() and state.database.exists()]
    if not usable:
        raise CliError(
            f"no profile is running, and no experiment is stored below {root}",
            advice="Start a profile with `paceline up PROFILE.yaml`.",
            code=ExitCode.NOT_FOUND,
        )
    state = usable[0]
    port = choose_port(PortRequest("the control API", "", "127.0.0.1", 0))
    log = state.folder / "offline-api.log"
    log.unlink(missing_ok=True)
    child = Child(
        "the control API",
        (sys.executable, "-P", "-m", "paceline.control_api"),
        env={**inherited(os.environ), **api_environment(state, port)},
        log=log,
        grace_seconds=5,
    )
    try:
        _wait_ready(child, f"http://127.0.0.1:{port}/readyz", log)
        yield ApiAddress(f"http://127.0.0.1:{port}", state.api_token_file.read_text(encoding="utf-8").strip())
    finally:
        child.stop()
        child.wait_gone(START_SECONDS)


def _wait_ready(child: Child, url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=2, trust_env=False) as client:
        while not answers(client, url):
            if child.wait_gone(0.1) or time.monotonic() > deadline:
                found = diagnose(child.name, child.status, last_lines(log), ready=False)
                lines = "".join(f"\n  | {line}" for line in found.lines)
                raise CliError(f"{found.summary}\nThe end of {log}:{lines}", advice=found.advice)
