"""The escape: when prefills must start to run every step, so that each is done by its deadline."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SAFETY: Final = 1.25
"""Factor on the predicted time of the chunks to come: the model can't see new decoders or a longer context ahead."""
BLIND_SHARE: Final = 0.5
"""The share of the delay after which prefills escape while no step time is known yet."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A prefill in its turn: seconds since it arrived, tokens still to compute."""

    waited: float
    tokens: int


def must_escape(backlog: Iterable[Backlog], chunk_tokens: int, chunk_seconds: float | None, max_delay: float) -> bool:
    """Tell whether some prefill misses `max_delay` seconds after its arrival unless chunks run every step from now.

    `backlog` stands in the order in which the scheduler serves it; a prefill is done when all before it are, too.
    `chunk_seconds` is the duration of a step with a chunk of `chunk_tokens`, None while unknown.
    """
    if chunk_seconds is None:
        return any(prefill.waited >= BLIND_SHARE * max_delay for prefill in backlog)
    tokens = 0
    for prefill in backlog:
        tokens += prefill.tokens
        needed = (math.ceil(tokens / chunk_tokens) + 1) * chunk_seconds * SAFETY
        if prefill.waited + needed >= max_delay:
            return True
    return False
