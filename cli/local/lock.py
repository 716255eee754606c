"""The lock of a profile: held while any process of its run lives, gone with the last of them, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import Self


class AlreadyLockedError(Exception):
    """Another process holds the lock."""


class InstanceLock:
    """An flock(2) on a file. The kernel drops it when the last copy of the descriptor closes, so none gets stale.

    The guards inherit the descriptor: the lock outlives an `up` that was killed, until they have stopped everything.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1

    def acquire(self) -> Self:
        """Take the lock or raise AlreadyLockedError at once."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyLockedError from None
        self.descriptor = descriptor
        return self

    def release(self) -> None:
        """Give up this process's hold."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_locked(path: Path) -> bool:
    """Tell whether some process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that two commands that ask at once don't see each other as holders.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
