"""Whose turn it is when several prefills share one mixed step: round-robin by waiting time.

A prefill's wait counts from its arrival, and anew from each chunk that it got in its turn. What the one in turn leaves
of the step's budget goes to those behind it, and does not count as their turn.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import RequestStatus

from paceline.engine_ext.pacing import prefills


@dataclass(frozen=True, slots=True)
class Contender:
    """A prefill: its rank (lower goes first, whatever the wait), since when it waits, tokens left, turns it had."""

    rank: int
    since: float
    tokens: int
    turns: int = 0


def order(contenders: Sequence[Contender]) -> list[int]:
    """Return the contenders' indices in the order of their turns; equals keep the scheduler's order."""
    keys = [(contender.rank, contender.since, contender.turns) for contender in contenders]
    return sorted(range(len(keys)), key=keys.__getitem__)


def shares(contenders: Sequence[Contender], budget: int, cap: int) -> list[int]:
    """Return how many tokens each may compute in a step of `budget` tokens, none more than `cap`, in turn."""
    given, left = [0] * len(contenders), budget
    for index in order(contenders):
        given[index] = min(contenders[index].tokens, cap, left)
        left -= given[index]
    return given


@dataclass(frozen=True, slots=True)
class Turn:
    """What the prefills in `running` may compute in this step, and who is in turn, by request id."""

    in_turn: str
    allowed_tokens: Mapping[str, int]


def take_turn(scheduler: Any, partial: Sequence[Any], admittable: int) -> Turn | None:
    """Return the turn of a mixed step; None where one prefill is alone or all of them fit.

    `partial` are the prefills in `running` that may be held; `admittable` is how many waiting ones there are slots for.
    """
    waiting = _ready(prefills.next_waiting(scheduler.admission_queue), admittable, partial, _free_tokens(scheduler))
    requests = [*partial, *waiting]
    if len(requests) < 2:
        return None
    contenders = _contenders(scheduler, requests)
    budget = max(0, scheduler.max_num_scheduled_tokens - _spoken_for(scheduler.running, partial))
    cap = scheduler.scheduler_config.long_prefill_token_threshold or budget
    if sum(min(contender.tokens, cap) for contender in contenders) <= budget:
        return None
    given = shares(contenders, budget, cap)
    return Turn(
        in_turn=requests[order(contenders)[0]].request_id,
        allowed_tokens={request.request_id: tokens for request, tokens in zip(partial, given, strict=False)},
    )


def next_in_turn(scheduler: Any, requests: Sequence[Any]) -> Any:
    """Return whose turn it is among prefills, of which there is at least one."""
    return requests[order(_contenders(scheduler, requests))[0]]


def end_turn(turn: Turn | None, scheduled: Iterable[Any], now: float) -> None:
    """Let those that had their turn wait from now on: the one in turn, or all where nobody was held."""
    for request in scheduled:
        if turn is None or request.request_id == turn.in_turn:
            request.paceline_waits_since = now
            request.paceline_turns += 1


def _contenders(scheduler: Any, requests: Iterable[Any]) -> list[Contender]:
    ranked = scheduler.policy is SchedulingPolicy.PRIORITY
    return [
        Contender(
            rank=request.priority if ranked else 0,
            since=request.paceline_waits_since,
            tokens=_left(request),
            turns=request.paceline_turns,
        )
        for request in requests
    ]


def _ready(queue: Iterable[Any], admittable: int, partial: Sequence[Any], free_tokens: int) -> list[Any]:
    """Return the waiting requests that contend: admissible ones, whose prompts fit the cache beside those begun."""
    ready: list[Any] = []
    free_tokens -= sum(_left(request) for request in partial)
    for request in queue:
        free_tokens -= _left(request)
        if len(ready) == admittable or free_tokens < 0 or not _is_admissible(request):
            break
        ready.append(request)
    return ready


def _is_admissible(request: Any) -> bool:
    return request.status is RequestStatus.WAITING or prefills.is_ready_after_preemption(request)


def _free_tokens(scheduler: Any) -> int:
    blocks: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return blocks * scheduler.block_size // max(1, len(scheduler.kv_cache_config.kv_cache_groups))


def _spoken_for(running: Iterable[Any], partial: Sequence[Any]) -> int:
    """Return the tokens of the step that go to decoders, and to prefills that are never held."""
    contending = {request.request_id for request in partial}
    return sum(
        max(0, request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens)
        for request in running
        if request.request_id not in contending
    )


def _left(request: Any) -> int:
    return max(0, request.num_tokens - request.num_computed_tokens)
