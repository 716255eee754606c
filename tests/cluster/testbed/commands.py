"""The commands of the cluster, and running one to its end."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class CommandError(AssertionError):
    """A command failed; the message holds what it printed."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit status."""

    status: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[object],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
    seconds: float = 120,
) -> Answer:
    """Run a command to its end.

    Raises:
        CommandError: it failed and `check` is set.
        subprocess.TimeoutExpired: it took longer than `seconds`.
    """
    words = [str(word) for word in argv]
    done = subprocess.run(
        words,
        input=stdin,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if check and done.returncode != 0:
        message = f"`{' '.join(words)}` ended with status {done.returncode}\n{done.stdout}{done.stderr}"
        raise CommandError(message)
    return Answer(done.returncode, done.stdout, done.stderr)


@cache
def shell_library(command: str) -> str:
    """Return what a command prints that may use the functions and variables of scripts/common.sh.

    What it says of its progress goes to this program's standard error. Raises CommandError.
    """
    script = f"set -euo pipefail; source scripts/common.sh; {command}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        message = f"`{command}` ended with status {done.returncode}"
        raise CommandError(message)
    return done.stdout.strip()


def cache_folder() -> Path:
    """Return the folder where slow things are kept between runs."""
    return Path(shell_library("echo $CACHE"))


def kubernetes_command(name: str) -> Path:
    """Return the path of one of the cluster's commands, built if need be (minutes, the first time)."""
    return Path(shell_library(f"bash scripts/build_kubernetes.sh {name}"))
