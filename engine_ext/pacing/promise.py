"""The promise to the residents: for each of them, how much later its next token may come."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

CREDIT_RELEASES: Final = 16.0
"""How many releases a fast resident may save up for.

Whoever reads at the promised pace waits for no token whatever the cap, since credit is what lies ready ahead of him.
The cap bounds how long his tokens may then come slower than promised. A lower one makes newcomers wait for what the
mean over a request does not need: benchmarks/slo_attainment.py tells the price.
"""
PRUNE_MARGIN: Final = 64


@dataclass(slots=True)
class Resident:
    """One request's tokens so far: times of the first and the last, their count, and the credit saved, in seconds."""

    first: float
    last: float
    tokens: int
    credit: float = 0.0


@dataclass(slots=True)
class Promise:
    """Keeps account of `seconds` per output token for every resident.

    A token that comes early adds to its request's credit, a late one takes from it; as long as no credit is below
    zero, the mean gap of every request keeps the promise. Credit is capped, so that the mean holds over short
    stretches too. `kept` and `broken` count finished requests by their mean gap over all their tokens.
    """

    seconds: float
    residents: dict[str, Resident] = field(default_factory=dict)
    kept: int = 0
    broken: int = 0

    def on_tokens(self, request_id: str, count: int, now: float, cap: float) -> None:
        """Account for `count` new tokens of a request at time `now`; credit above `cap` seconds is dropped."""
        resident = self.residents.get(request_id)
        if resident is None:
            self.residents[request_id] = Resident(now, now, count)
            return
        gained = count * self.seconds - (now - resident.last)
        resident.credit = min(cap, resident.credit + gained)
        resident.tokens += count
        resident.last = now

    def on_finished(self, request_id: str) -> None:
        """Judge a finished request; one with a single token has no gap to judge."""
        resident = self.residents.pop(request_id, None)
        if resident is None or resident.tokens < 2:
            return
        if (resident.last - resident.first) / (resident.tokens - 1) <= self.seconds:
            self.kept += 1
        else:
            self.broken += 1

    def restart(self, seconds: float) -> None:
        """Promise another pace from now on; the residents' accounts of the old one are closed unjudged."""
        self.seconds = seconds
        self.residents.clear()

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Drop the residents that were aborted, once they outnumber those alive by a margin."""
        if len(self.residents) > len(alive) + PRUNE_MARGIN:
            self.residents = {key: value for key, value in self.residents.items() if key in alive}

    def smallest_slack(self, tokens_due: Mapping[str, int], done_at: float) -> float:
        """Return how many seconds are left over for the worst of the residents, negative when one would be late.

        `done_at` is when the step to judge would end, `tokens_due` how many tokens each resident gets by then.
        """
        slacks = (
            resident.credit + due * self.seconds - (done_at - resident.last)
            for request_id, due in tokens_due.items()
            if (resident := self.residents.get(request_id)) is not None
        )
        return min(slacks, default=float("inf"))
