"""The escape: when prefills must start to run every step, so that each is done by its deadline."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SAFETY: Final = 1.25
"""Factor on the predicted time of the chunks to come: the model can't see the decoders that join meanwhile."""
BLIND_SHARE: Final = 0.5
"""The share of the delay after which prefills escape while no step time is known yet."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A prefill in its turn: seconds since it arrived, tokens still to compute, and tokens computed before them."""

    waited: float
    tokens: int
    context: int = 0

    @property
    def pairs(self) -> float:
        """The query-key pairs of what is still to compute."""
        return self.tokens * (self.context + self.tokens / 2)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step without prefills, and what each prefill token and each query-key pair adds to a step."""

    step: float
    token: float
    pair: float


def must_escape(backlog: Iterable[Backlog], chunk_tokens: int, costs: StepCosts | None, max_delay: float) -> bool:
    """Tell whether some prefill misses `max_delay` seconds after its arrival unless chunks run every step from now.

    `backlog` stands in the order in which the scheduler serves it; a prefill is done when all before it are, too.
    Each step computes `chunk_tokens` of it; one step more is allowed for. `costs` is None while they are unknown.
    """
    if costs is None:
        return any(prefill.waited >= BLIND_SHARE * max_delay for prefill in backlog)
    tokens, pairs = 0, 0.0
    for prefill in backlog:
        tokens += prefill.tokens
        pairs += prefill.pairs
        steps = math.ceil(tokens / chunk_tokens) + 1
        needed = steps * costs.step + (tokens + chunk_tokens) * costs.token + pairs * costs.pair
        if prefill.waited + needed * SAFETY >= max_delay:
            return True
    return False
