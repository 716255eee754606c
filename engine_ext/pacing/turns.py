"""Whose turn it is when several prefills share one mixed step: round-robin by waiting time.

A prefill's wait counts from its arrival, and anew from each chunk that it got in its turn. What the one in turn leaves
of the step's budget goes to those behind it, and does not count as their turn.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import RequestStatus

from paceline.engine_ext.pacing import cached, prefills


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


def take_turn(scheduler: Any, partial: Sequence[Any], waiting: Sequence[Any]) -> Turn | None:
    """Return the turn of a mixed step; None where one prefill is alone or all of them fit.

    `partial` are the prefills in `running` that may be held, `waiting` those that there are slots for.
    """
    requests = [*partial, *fitting(scheduler, partial, waiting)]
    if len(requests) < 2:
        return None
    contenders = _contenders(scheduler, requests)
    limit = scheduler.scheduler_config.long_prefill_token_threshold or scheduler.max_num_scheduled_tokens
    budget = max(0, scheduler.max_num_scheduled_tokens - _spoken_for(scheduler.running, partial, limit))
    cap = min(limit, budget)
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


def end_turn(had_turn: Iterable[Any], now: float) -> None:
    """Let those that had their turn wait from now on."""
    for request in had_turn:
        request.paceline_waits_since = now
        request.paceline_turns += 1


def _contenders(scheduler: Any, requests: Iterable[Any]) -> list[Contender]:
    ranked = scheduler.policy is SchedulingPolicy.PRIORITY
    return [
        Contender(
            rank=request.priority if ranked else 0,
            since=request.paceline_waits_since,
            tokens=cached.left(scheduler, request),
            turns=request.paceline_turns,
        )
        for request in requests
    ]


def admissible(scheduler: Any, admittable: int) -> list[Any]:
    """Return the waiting requests that the scheduler could admit, at most `admittable`, as far as slots go.

    Those whose grammar has been compiled meanwhile are among them: vLLM itself notices only when it looks at them.
    """
    if not admittable:
        return []
    queue = prefills.next_waiting(scheduler.admission_queue)
    return list(islice((r for r in queue if scheduler.unblocked(r) and _is_ready(r)), admittable))


def fitting(scheduler: Any, partial: Sequence[Any], waiting: Sequence[Any]) -> list[Any]:
    """Return the first of the waiting requests that fit the cache together, beside the prefills that have begun."""
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    free -= sum(cached.blocks_left(scheduler, request) for request in partial)
    found: list[Any] = []
    shared: set[int] = set()
    for request in waiting:
        idle = cached.hit(scheduler, request).idle
        free -= cached.blocks_left(scheduler, request) + len(idle - shared)
        shared |= idle
        if free < 0:
            break
        found.append(request)
    return found


def _is_ready(request: Any) -> bool:
    return request.status is RequestStatus.WAITING or prefills.is_ready_after_preemption(request)


def _spoken_for(running: Iterable[Any], partial: Sequence[Any], limit: int) -> int:
    """Return the tokens of the step that go to decoders, and to prefills never held; at most `limit` to each."""
    contending = {request.request_id for request in partial}
    return sum(
        min(limit, max(0, request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens))
        for request in running
        if request.request_id not in contending
    )
