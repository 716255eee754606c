"""The prefills of a step: which were scheduled, what they cost, and which come next."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from vllm.v1.request import RequestStatus

from paceline.engine_ext.pacing import cached
from paceline.engine_ext.pacing.deadline import Backlog
from paceline.engine_ext.pacing.step_time import StepLoad

LOOKAHEAD_REQUESTS: Final = 64
"""How many waiting prompts the deadline looks at; those behind them arrived later."""


def scheduled(output: Any, prefilling: Sequence[Any], requests: Mapping[str, Any]) -> list[Any]:
    """Return the prefills in a scheduler's output: running ones that got a chunk, and requests newly admitted."""
    tokens = output.num_scheduled_tokens
    found = [request for request in prefilling if request.request_id in tokens]
    admitted = [new.req_id for new in output.scheduled_new_reqs]
    admitted += output.scheduled_cached_reqs.resumed_req_ids
    return found + [requests[request_id] for request_id in admitted]


def load(output: Any, prefills: Sequence[Any]) -> StepLoad:
    """Return the load of a step that has been scheduled; `num_computed_tokens` stands at each chunk's end by now."""
    tokens, pairs = 0, 0.0
    for request in prefills:
        chunk = output.num_scheduled_tokens[request.request_id]
        tokens += chunk
        pairs += chunk * (request.num_computed_tokens - chunk / 2)
    return StepLoad(len(output.num_scheduled_tokens) - len(prefills), tokens, pairs)


def next_waiting(waiting: Iterable[Any]) -> list[Any]:
    """Return the first of the waiting requests, in the order in which the scheduler admits them."""
    return list(islice(waiting, LOOKAHEAD_REQUESTS))


def backlog(scheduler: Any, request: Any, now: float) -> Backlog:
    """Return how long a prefill has waited and what is left of it.

    A request that was preempted while it decoded had its first prefill long ago, and no deadline for the second.
    """
    waited = 0.0 if request.num_output_tokens else now - request.paceline_arrived_at
    return Backlog(waited, cached.left(scheduler, request), cached.context(scheduler, request))


def chunk_tokens(backlog: Sequence[Backlog], budget_tokens: int, limit_tokens: int) -> int:
    """Return how many prefill tokens the next mixed step would carry, at least one.

    `limit_tokens` is what one request may compute in a step at most; 0 for no limit but the budget.
    """
    limit = limit_tokens or budget_tokens
    return max(1, min(sum(min(limit, prefill.tokens) for prefill in backlog), budget_tokens))


def is_ready_after_preemption(request: Any) -> bool:
    """Tell whether a waiting request was preempted and the scheduler can take it back at once."""
    if request.status is not RequestStatus.PREEMPTED:
        return False
    # vLLM 0.22.1 takes it back whatever of its output is in flight.
    return not getattr(request, "num_stale_output_tokens", 0) or request.drop_stale_output
