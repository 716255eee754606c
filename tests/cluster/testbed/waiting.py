"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable

import httpx

POLL_SECONDS = 0.05
PROBE = httpx.Client(trust_env=False, timeout=5, limits=httpx.Limits(max_keepalive_connections=0))
"""One client for all questions whether a program is up: making one costs 30 ms of a core, every time."""


class DeadlineError(AssertionError):
    """A condition did not come true in time."""


def wait_until[Result](
    condition: Callable[[], Result | None], what: str, *, seconds: float = 30, details: Callable[[], str] = str
) -> Result:
    """Call `condition` until it returns something true, and return that.

    Raises:
        DeadlineError: it did not within `seconds`; the message names `what`, and adds what `details` returns.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            message = f"not within {seconds:g} s: {what}; last answer: {result!r}\n{details()}".rstrip()
            raise DeadlineError(message)
        time.sleep(POLL_SECONDS)
