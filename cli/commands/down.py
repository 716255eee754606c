"""`paceline down`: stop a local run from another terminal."""

import os
import signal
import time
from typing import Annotated

import typer

from paceline.cli.durations import milliseconds
from paceline.cli.errors import CliError
from paceline.cli.instance import Phase, local_state, phase_of
from paceline.cli.local.lock import is_locked
from paceline.cli.local.progress import ProgressLine
from paceline.cli.output import notice_console

EPILOG = """Examples:

  paceline down cpu-tiny

Stopping what has ended already is no error; a name that was never started here is, with exit status 4."""

POLL_SECONDS = 0.1


def down(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile: NAME or NAMESPACE/NAME.")],
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait until all has ended.")] = "60s",
) -> None:
    """Stop a running profile as Ctrl-C in its `paceline up` does, and wait until nothing of it is left."""
    limit_seconds = milliseconds(timeout) / 1_000
    state = local_state(name)
    run = state.read_run()
    console = notice_console()
    phase = phase_of(state, run)
    if phase is Phase.STOPPED:
        console.print(f"{state.key} is not running", markup=False)
        return
    if run is None:
        raise CliError(f"{state.key} is just starting", advice="Try again in some seconds.")
    if phase is not Phase.STOPPING:
        os.kill(run.up_pid, signal.SIGTERM)
    with ProgressLine(console, state.key) as line:
        while is_locked(state.lock):
            line.show("stopping")
            if line.elapsed_seconds > limit_seconds:
                raise CliError(
                    f"{state.key} has not ended after {timeout}",
                    advice=f"`kill {run.up_pid}` stops it at once, as a second Ctrl-C does.",
                )
            time.sleep(POLL_SECONDS)
    console.print(f"{state.key} is stopped", markup=False)
