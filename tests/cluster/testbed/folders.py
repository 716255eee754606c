"""Where a cluster keeps its data."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for one cluster, readable by its owner only, and remove it at the end."""
    # Short: the path of a socket in it may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="paceline-cluster-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
