"""Where a cluster keeps its data, and what is to be done about those that nobody removed."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from testbed import cgroups

# Short: the path of a socket in it may have 107 characters.
PREFIX = "paceline-cluster-"
OWNER = "owner"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for one cluster, readable by its owner only, and remove it at the end."""
    remove_abandoned()
    new = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    with (new / OWNER).open("w") as owner:
        # Held as long as this program lives, however it ends. Under its name the folder is locked from the beginning.
        fcntl.flock(owner, fcntl.LOCK_EX)
        folder = new.rename(new.with_name(new.name.removeprefix(".")))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def remove_abandoned() -> None:
    """Remove the folders and control groups of clusters whose program was killed; their processes died with it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Gone meanwhile, or another user's.
        with contextlib.suppress(FileNotFoundError, PermissionError), (folder / OWNER).open("r+") as owner:
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            cgroups.remove(folder.name)
            shutil.rmtree(folder)
