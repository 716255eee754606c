"""What has arrived of a stream, and what that makes of the request."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final

from paceline.bench.clock import Instant
from paceline.bench.deltas import Delta
from paceline.bench.records import ChunkTimeline, RequestRecord, RequestState, Role, Usage

BROKEN_FINISH_REASONS: Final = frozenset({"abort", "error"})
"""Finish reasons by which an engine says that it gave up on a request."""


@dataclass(frozen=True)
class RequestIdentity:
    """Who a request is in its run."""

    request_id: str
    role: Role
    index: int
    arm: str
    block: int
    warm_up: bool
    prompt_tokens: int
    max_tokens: int


@dataclass
class Received:
    """The state of one stream, event by event."""

    sent: float | None = None
    first_byte: float | None = None
    first_token: float | None = None
    status: int | None = None
    done: bool = False
    error: str | None = None
    finish_reason: str | None = None
    counted: int = 0
    _seconds: list[float] = field(default_factory=list)
    _wall_seconds: list[float] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)
    _token_source: str | None = None
    _token_ids: list[int] = field(default_factory=list)
    _logprobs: list[float | None] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _usage: Usage = field(default_factory=Usage)
    _queue_seconds: float | None = None
    _prefill_seconds: float | None = None

    def take(self, delta: Delta, now: Instant) -> None:
        """Add one event that arrived at `now`."""
        if delta.error is not None:
            self.error = self.error or delta.error
            return
        tokens, source = delta.tokens, delta.token_source
        if tokens is None and delta.total_tokens is not None:
            tokens, source = max(0, delta.total_tokens - self.counted), "usage"
        if delta.bears_token or tokens:
            self._take_chunk(delta, tokens or 0, source, now)
        self.finish_reason = delta.finish_reason or self.finish_reason
        self._usage = delta.usage or self._usage
        if delta.queue_seconds is not None:
            self._queue_seconds, self._prefill_seconds = delta.queue_seconds, delta.prefill_seconds

    def refuse(self, body: str) -> None:
        """Note the reason that a response without a stream gives."""
        try:
            problem = json.loads(body)
        except json.JSONDecodeError:
            problem = None
        detail = problem.get("error") or problem.get("detail") if isinstance(problem, dict) else None
        message = detail.get("message") if isinstance(detail, dict) else detail
        self.error = f"HTTP {self.status}: {message or body[:500] or 'no reason given'}"

    def conclude(self) -> RequestState:
        """Return how the stream ended, now that it has; notes the reason where it did not end well."""
        if self.error is None and self.finish_reason in BROKEN_FINISH_REASONS:
            self.error = f"the engine gave up on the request (finish reason {self.finish_reason})"
        if self.error is not None:
            return RequestState.FAILED
        claimed = self._usage.completion_tokens
        if not self.done:
            self.error = "the stream stopped without its end mark"
        elif self.finish_reason is None:
            self.error = "the stream ended without a finish reason"
        elif self._token_source is not None and claimed is not None and claimed != self.counted:
            self.error = f"the engine says that it made {claimed} tokens, and {self.counted} arrived"
        return RequestState.FINISHED if self.error is None else RequestState.INCOMPLETE

    def record(self, identity: RequestIdentity, intended: float, finished: float, state: RequestState) -> RequestRecord:
        """Return the request's record."""
        return RequestRecord(
            **vars(identity),
            state=state,
            intended_seconds=intended,
            sent_seconds=self.sent,
            first_byte_seconds=self.first_byte,
            first_token_seconds=self.first_token,
            finished_seconds=finished,
            chunks=ChunkTimeline(
                received_seconds=tuple(self._seconds),
                received_wall_seconds=tuple(self._wall_seconds),
                tokens=tuple(self._tokens),
            ),
            token_source=self._token_source,
            output_tokens=self.counted,
            output_token_ids=tuple(self._token_ids),
            output_logprobs=tuple(self._logprobs),
            output_text_sha256=hashlib.sha256("".join(self._text).encode()).hexdigest(),
            finish_reason=self.finish_reason,
            http_status=self.status,
            error=self.error,
            usage=self._usage,
            queue_seconds=self._queue_seconds,
            prefill_seconds=self._prefill_seconds,
        )

    def _take_chunk(self, delta: Delta, tokens: int, source: str | None, now: Instant) -> None:
        if self.first_token is None:
            self.first_token = now.seconds
        self._seconds.append(now.seconds)
        self._wall_seconds.append(now.wall_seconds)
        self._tokens.append(tokens)
        self._token_source = source or self._token_source
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs
        self._text.append(delta.text)
        self.counted += tokens
