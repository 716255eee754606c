"""What a finished block amounts to: its record, made from what its requests and the engine's counters say."""

from dataclasses import dataclass
from statistics import fmean
from typing import Final

from paceline.bench.clock import Instant
from paceline.bench.counters import CACHE_HITS, PREFILL_TIME, QUEUE_TIME, counter_delta, moved, was_reset
from paceline.bench.mixed_phase import BlockSetup, BlockTrace
from paceline.bench.records import BlockRecord, ClientLag, Metric, PrefillSteps, RequestRecord, RequestState, Role
from paceline.bench.steps import prefill_steps
from paceline.bench.windows import chunk_gaps, rate, token_gaps

MAX_STALLED_SHARE: Final = 0.25
"""How much of its shortest window the client may sleep through, beyond the plan's limit, before a block is void."""


@dataclass(frozen=True)
class BlockFrame:
    """When a block ran, under which revision of the settings, how late the client was, and what went wrong."""

    started: Instant
    ended_seconds: float
    revision: int | None
    lag: ClientLag
    max_lag_seconds: float
    problem: str | None


def completed(record: RequestRecord) -> bool:
    """Tell whether a request did all that was planned for it: the injected one ends, residents outlive it."""
    if record.role is Role.INJECTED:
        return record.state is RequestState.FINISHED and record.output_tokens == record.max_tokens
    return record.state in (RequestState.ENDED_BY_PLAN, RequestState.FINISHED) and record.output_tokens > 0


def finish_block(setup: BlockSetup, trace: BlockTrace, frame: BlockFrame) -> tuple[BlockRecord, list[RequestRecord]]:
    """Return the block's record and its requests', those with what the engine's counters add to them."""
    requests = [_with_engine_times(record, trace) for record in trace.records]
    residents = [record for record in requests if record.role is Role.RESIDENT]
    injected = next((record for record in requests if record.role is Role.INJECTED), None)
    done = [record for record in requests if completed(record)]
    planned = setup.workload.residents + 1
    problems = [frame.problem] if frame.problem else []
    if len(done) < planned:
        problems.append(f"{len(done)} of {planned} requests were completed")
    if any(record.output_tokens and record.token_source is None for record in done):
        problems.append("the engine does not tell how many tokens a chunk carries, so no rate can be measured")
    if stalled := _stalled(trace, injected, frame):
        problems.append(stalled)
    rates = _rates(residents, trace, injected)
    first_token = injected.first_token_seconds if injected else None
    record = BlockRecord(
        arm=setup.arm,
        block=setup.block,
        position=setup.position,
        warm_up=setup.warm_up,
        revision=frame.revision,
        started_seconds=frame.started.seconds,
        started_wall_seconds=frame.started.wall_seconds,
        steady_seconds=trace.steady_seconds,
        injected_seconds=trace.injected_seconds,
        first_token_seconds=first_token,
        ended_seconds=frame.ended_seconds,
        injected_prompt_tokens=setup.workload.prompt_tokens,
        planned_requests=planned,
        completed_requests=len(done),
        per_resident_before=rates[0],
        per_resident_during=rates[1],
        metrics=_metrics(residents, injected, trace, rates),
        counters=counter_delta(trace.start_page, trace.injected_page)
        if trace.start_page and trace.injected_page
        else None,
        injected_cached_tokens=_cached_tokens(injected, trace),
        prefill_steps=_steps(injected, trace),
        lag=frame.lag,
        problems=tuple(problems),
    )
    return record, requests


def _stalled(trace: BlockTrace, injected: RequestRecord | None, frame: BlockFrame) -> str | None:
    """Tell where the client slept through so much of a window that its times mean nothing."""
    steady, sent = trace.steady_seconds, trace.injected_seconds
    if steady is None or sent is None or injected is None or injected.first_token_seconds is None:
        return None
    shortest = min(sent - steady, injected.first_token_seconds - sent)
    lag = frame.lag.max_loop_lag_seconds
    if lag <= max(frame.max_lag_seconds, MAX_STALLED_SHARE * shortest):
        return None
    return f"the client stood still for {lag:.2f} s beside a window of {shortest:.2f} s: give it a free core"


Rates = tuple[tuple[float, ...], tuple[float, ...]]


def _rates(residents: list[RequestRecord], trace: BlockTrace, injected: RequestRecord | None) -> Rates:
    steady, sent = trace.steady_seconds, trace.injected_seconds
    if steady is None or sent is None or injected is None or injected.first_token_seconds is None:
        return (), ()
    return (
        tuple(rate(record.chunks, steady, sent) for record in residents),
        tuple(rate(record.chunks, sent, injected.first_token_seconds) for record in residents),
    )


def _metrics(
    residents: list[RequestRecord], injected: RequestRecord | None, trace: BlockTrace, rates: Rates
) -> dict[Metric, float]:
    start = trace.injected_seconds
    if start is None or injected is None or injected.first_token_seconds is None:
        return {}
    end = injected.first_token_seconds
    metrics = {
        Metric.RESIDENT_RATE_BEFORE: fmean(rates[0]),
        Metric.RESIDENT_RATE_DURING: fmean(rates[1]),
        Metric.TIME_TO_FIRST_TOKEN: end - injected.intended_seconds,
    }
    for metric, gaps_of in (
        (Metric.LONGEST_CHUNK_GAP_DURING, chunk_gaps),
        (Metric.LONGEST_TOKEN_GAP_DURING, token_gaps),
    ):
        gaps = [gap for record in residents for gap in gaps_of(record.chunks, start, end)]
        if gaps:
            metrics[metric] = max(gaps)
    if injected.prefill_seconds is not None:
        metrics[Metric.ADMISSION_TO_FIRST_TOKEN] = injected.prefill_seconds
    return metrics


def _with_engine_times(record: RequestRecord, trace: BlockTrace) -> RequestRecord:
    """Add the engine's own times to the injected request, where its histograms moved by that one request alone."""
    before, after = trace.window_page, trace.injected_page
    if record.role is not Role.INJECTED or record.prefill_seconds is not None or before is None or after is None:
        return record
    if was_reset(before, after) or moved(before, after, f"{PREFILL_TIME}_count") != 1:
        return record
    return record.model_copy(
        update={
            "queue_seconds": moved(before, after, f"{QUEUE_TIME}_sum"),
            "prefill_seconds": moved(before, after, f"{PREFILL_TIME}_sum"),
        }
    )


def _cached_tokens(injected: RequestRecord | None, trace: BlockTrace) -> int | None:
    """Return the prompt tokens that the injected request found in the cache, by its usage, else by the counters."""
    if injected is not None and injected.usage.cached_tokens is not None:
        return injected.usage.cached_tokens
    before, after = trace.window_page, trace.injected_page
    if before is None or after is None or was_reset(before, after):
        return None
    hits = moved(before, after, CACHE_HITS)
    return None if hits is None else round(hits)


def _steps(injected: RequestRecord | None, trace: BlockTrace) -> PrefillSteps | None:
    if injected is None or trace.steps is None:
        return None
    return prefill_steps(trace.steps, injected.request_id, injected.prompt_tokens)
