"""A work queue of keys: each key is waiting at most once, and worked on by at most one worker at a time."""

import asyncio
from collections.abc import Hashable


class WorkQueue[Key: Hashable]:
    """Keys to reconcile. A key that is added while it is worked on comes again afterwards.

    Not safe between threads; all of it runs in one event loop.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._queued) + len(self._again)

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing waits and nothing is worked on; later additions may be due."""
        return not self._queued and not self._active

    def add(self, key: Key) -> None:
        """Ask for a pass as soon as possible, in the place of one that was due later."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._waiting.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Ask for a pass in `seconds`, unless one is due sooner."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if key in self._queued or key in self._again:
            return
        if timer := self._timers.get(key):
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    async def get(self) -> Key:
        """Wait for a key; call `done` with it after the work."""
        key = await self._waiting.get()
        self._queued.discard(key)
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        """Say that the work on a key ended."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)
