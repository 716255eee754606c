"""A load that changes: prompts of 1K to 20K arrive in calm and in busy stretches, are answered, and leave."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

STRETCH_SECONDS = 40.0
PROMPT_TOKENS = (1_000, 20_000)
OUTPUT_TOKENS = (64, 512)


@dataclass(frozen=True)
class Arrival:
    """A request: when it comes, in seconds, and how long its prompt and its answer are, in tokens."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Course:
    """What became of a request: seconds from its arrival to its first token, and from there to its last."""

    first_token: float
    decoding: float
    tokens: int

    @property
    def seconds_per_token(self) -> float:
        """The mean gap between two of its tokens."""
        return self.decoding / (self.tokens - 1)


def arrivals(seed: int, requests: int, calm: float, busy: float) -> list[Arrival]:
    """Draw a load that alternates between `calm` and `busy` arrivals per second."""
    draw = random.Random(seed)
    at, drawn = 0.0, []
    for _ in range(requests):
        at += draw.expovariate(busy if int(at / STRETCH_SECONDS) % 2 else calm)
        low, high = (math.log(bound) for bound in PROMPT_TOKENS)
        drawn.append(Arrival(at, round(math.exp(draw.uniform(low, high))), draw.randint(*OUTPUT_TOKENS)))
    return drawn


@dataclass(frozen=True)
class Outcome:
    """One setting's figures: the share of requests whose mean gap kept the promise, and their waits in seconds."""

    arm: str
    attainment: float
    mean_wait: float
    p95_wait: float
    worst_gap: float

    @classmethod
    def of(cls, arm: str, courses: Sequence[Course], promise: float) -> "Outcome":
        gaps = [course.seconds_per_token for course in courses if course.tokens > 1]
        waits = sorted(course.first_token for course in courses)
        return cls(
            arm=arm,
            attainment=sum(gap <= promise for gap in gaps) / len(gaps),
            mean_wait=fmean(waits),
            p95_wait=waits[math.ceil(0.95 * len(waits)) - 1],
            worst_gap=max(gaps),
        )


def best_fixed(outcomes: Sequence[Outcome], attainment: float) -> Outcome | None:
    """Return the fixed interval with the shortest mean wait among those that kept as many promises."""
    kept = [outcome for outcome in outcomes if outcome.attainment >= attainment]
    return min(kept, key=lambda outcome: outcome.mean_wait, default=None)
