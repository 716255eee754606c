"""How long a prompt must be for its prefill to take a given time on this engine: a short calibration before a run.

The time of a cold prefill is taken as a*n + b*n^2 (projections, and attention over what came before), from the two
longest probes.
"""

import math
from dataclasses import dataclass
from typing import Final

from paceline.bench.clock import RunClock
from paceline.bench.engine import EngineClient, EngineError
from paceline.bench.prompts import make_prompt
from paceline.bench.received import RequestIdentity
from paceline.bench.records import RequestState, Role

FIRST_PROBE_TOKENS: Final = 512
MAX_PROBE_SECONDS: Final = 3.0
ROUND_TO_TOKENS: Final = 256


@dataclass(frozen=True)
class Probe:
    """One measured prefill: its tokens, and the seconds from sending it to its first token."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class SizedPrompt:
    """The length that was found, and the seconds that its prefill should take; less than asked where `limited`."""

    tokens: int
    seconds: float
    limited: bool


def size_for(short: Probe, long: Probe, target_seconds: float, longest_tokens: int) -> SizedPrompt:
    """Return the length whose prefill takes `target_seconds`, by two probes of different lengths."""
    per_token, per_square = _fit(short, long)
    if per_square > 0:
        exact = (math.sqrt(per_token**2 + 4 * per_square * target_seconds) - per_token) / (2 * per_square)
    else:
        exact = target_seconds / per_token
    wanted = math.ceil(exact / ROUND_TO_TOKENS) * ROUND_TO_TOKENS
    tokens = min(wanted, longest_tokens)
    return SizedPrompt(tokens, per_token * tokens + per_square * tokens**2, limited=tokens < wanted)


async def size_prompt(
    engine: EngineClient, clock: RunClock, pool: tuple[int, ...], run_id: str, target_seconds: float, longest: int
) -> SizedPrompt:
    """Probe the idle engine with prompts that double in length, and return the length for `target_seconds`.

    Each length is probed twice and the faster one counts, since whatever else the machine does only adds time.
    """
    probes: list[Probe] = []
    tokens = min(FIRST_PROBE_TOKENS, longest)
    while True:
        seconds = min([await _probe(engine, clock, pool, f"{run_id}-size-{tokens}-{turn}", tokens) for turn in (0, 1)])
        probes.append(Probe(tokens, seconds))
        if len(probes) > 1 and (seconds >= min(MAX_PROBE_SECONDS, target_seconds / 4) or 2 * tokens > longest):
            return size_for(probes[-2], probes[-1], target_seconds, longest)
        if 2 * tokens > longest:
            return SizedPrompt(longest, seconds, limited=True)
        tokens *= 2


async def _probe(engine: EngineClient, clock: RunClock, pool: tuple[int, ...], request_id: str, tokens: int) -> float:
    identity = RequestIdentity(
        request_id, Role.INJECTED, index=0, arm="sizing", block=0, warm_up=True, prompt_tokens=tokens, max_tokens=1
    )
    prompt = make_prompt(pool, tokens, seed=0, block=0, role="sizing", index=tokens)
    record = await engine.completion(clock, identity, prompt, cache_salt=request_id).start(clock.seconds())
    waited = record.time_to_first_token_seconds
    if record.state is not RequestState.FINISHED or waited is None:
        raise EngineError(
            f"a probe of {tokens} tokens, to size the workload, ended {record.state.value}: {record.error}"
        )
    return waited


def _fit(short: Probe, long: Probe) -> tuple[float, float]:
    """Return seconds per token and per squared token; no square where the probes show none."""
    slope = long.seconds / long.tokens - short.seconds / short.tokens
    per_square = slope / (long.tokens - short.tokens)
    per_token = long.seconds / long.tokens - per_square * long.tokens
    if per_square <= 0 or per_token <= 0:
        return long.seconds / long.tokens, 0.0
    return per_token, per_square
