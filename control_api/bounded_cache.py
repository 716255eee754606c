"""A small cache whose entries live for a moment: for answers that are asked for again and again."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable


class BoundedCache[Key: Hashable, Value]:
    """Values by key, each for `seconds`; the one that was used longest ago goes where there are more than `size`."""

    def __init__(self, *, size: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    async def get(self, key: Key, make: Callable[[], Awaitable[Value]]) -> Value:
        """Return the value of a key, made anew where there is none that is young enough; a failure is not kept."""
        entry = self._entries.get(key)
        if entry is None or self._clock() >= entry[0]:
            entry = (self._clock() + self._seconds, await make())
            self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return entry[1]
