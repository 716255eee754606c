"""The control groups of a test node, in every hierarchy that the machine has."""

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def _folders(name: str) -> list[Path]:
    hierarchies = [ROOT] if (ROOT / "cgroup.controllers").exists() else sorted(ROOT.iterdir())
    return [hierarchy / name for hierarchy in hierarchies if (hierarchy / "cgroup.procs").exists()]


def create(name: str) -> None:
    """Make the groups that kubelet puts its own below."""
    for folder in _folders(name):
        folder.mkdir()


def remove(name: str) -> bool:
    """Remove the groups and all below them, as far as they are empty; tell whether all are gone."""
    for top in _folders(name):
        for folder, _, _ in os.walk(top, topdown=False):
            # Busy while its last processes end.
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
    return not any(top.exists() for top in _folders(name))
