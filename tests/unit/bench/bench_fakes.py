"""A small HTTP engine for tests: real sockets and streams, with faults that a real engine can't be made to show."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from paceline.bench.plan import Arm
from paceline.bench.protocol import ProgressEvent
from paceline.bench.records import BlockRecord, RequestRecord

MAX_MODEL_LEN = 4_096
STEP_SECONDS = 0.002
COUNTERS = (
    "vllm:num_preemptions",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
)

Body = dict[str, object]
Handler = Callable[[str, Body, "Reply"], Awaitable[None]]


class Reply:
    """Writes one HTTP response, whole or as a stream of events."""

    def __init__(self, writer: asyncio.StreamWriter):
        self.writer = writer

    async def whole(self, body: str, status: int = 200, kind: str = "application/json") -> None:
        data = body.encode()
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def start(self) -> None:
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.writer.write(head.encode())
        await self.writer.drain()

    async def event(self, data: str | Body) -> None:
        text = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self.writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def cut(self) -> None:
        """Break the connection without a proper end."""
        self.writer.transport.abort()


@asynccontextmanager
async def http_server(handler: Handler) -> AsyncIterator[str]:
    """Serve `handler` on a free port of the loopback interface and yield its URL."""

    connections: set[asyncio.WriteTransport] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer.transport)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ", 2)[1]
            length = next(
                (int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-length")), 0
            )
            body = json.loads(await reader.readexactly(length)) if length else {}
            await handler(path, body, Reply(writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**24)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
        for transport in connections:
            transport.abort()


def token_of(prompt: list[int], position: int) -> tuple[int, float]:
    """Return the token that the fake's model gives at a position after a prompt, and its logprob."""
    digest = hashlib.sha256(json.dumps([prompt, position]).encode()).digest()
    return digest[0], -digest[1] / 256


@dataclass
class FakeEngine:
    """An engine that decodes one token a step and prefills `chunk_tokens` a step; prefill steps take longer.

    `faults` maps a part of a request's id to what goes wrong with it: `error`, `cut`, `unfinished`,
    `refused`, or `complained`, an error event after which the stream goes on.
    With `salted` False the cache ignores salts, as an engine would for a client that forgot them. While paced the
    logprobs are off by `paced_logprob_shift`, as with a state that pacing corrupts; `unsteady` gives every request
    logprobs of its own.
    """

    chunk_tokens: int = 64
    salted: bool = True
    engines: int = 2
    paced_logprob_shift: float = 0.0
    unsteady: bool = False
    faults: dict[str, str] = field(default_factory=dict)
    extra_prompt_tokens: int = 0
    restarts: bool = False
    dead: bool = False
    generation: int = 1
    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0.0))
    queue: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    running: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    cached: set[str] = field(default_factory=set)
    hits: dict[str, int] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    interval: int = 1

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        async with http_server(self._answer) as url:
            yield url

    async def _answer(self, path: str, body: Body, reply: Reply) -> None:
        if self.dead:
            reply.cut()
        elif path == "/v1/models":
            await reply.whole(json.dumps({"data": [{"id": "fake", "max_model_len": MAX_MODEL_LEN}]}))
        elif path == "/version":
            await reply.whole(json.dumps({"version": "0.0-fake"}))
        elif path == "/tokenize":
            await reply.whole(json.dumps({"tokens": sorted(set(str(body["prompt"]).encode()))}))
        elif path == "/metrics":
            await reply.whole(self.metrics_page(), kind="text/plain")
        elif path == "/v1/completions":
            await self._complete(body, reply)
        else:
            await reply.whole('{"error": {"message": "no such route"}}', status=404)

    def metrics_page(self) -> str:
        """Return the counters, spread unevenly over the engine labels, in vLLM's spelling."""
        lines = []
        for name, value in self.counters.items():
            shares = [value // self.engines] * (self.engines - 1)
            for engine, share in enumerate([*shares, value - sum(shares)]):
                lines.append(f'{name}_total{{engine="{engine}",model_name="fake"}} {share}')
                lines.append(f'{name}_created{{engine="{engine}",model_name="fake"}} {self.generation}')
        for name, times in (
            ("vllm:request_queue_time_seconds", self.queue),
            ("vllm:request_prefill_time_seconds", self.prefill),
        ):
            lines.append(f'{name}_sum{{engine="0"}} {sum(times)}')
            lines.append(f'{name}_count{{engine="0"}} {len(times)}')
        lines.append(f'vllm:num_requests_running{{engine="0"}} {self.running}')
        lines.append('vllm:num_requests_waiting{engine="0"} 0')
        lines.append('vllm:cache_config_info{block_size="64",enable_prefix_caching="True",mamba_cache_mode="align"} 1')
        return "\n".join(lines) + "\n"

    def restart(self) -> None:
        """Start the counters anew, as a new process would."""
        self.generation += 1
        self.counters = dict.fromkeys(COUNTERS, 0.0)

    async def _complete(self, body: Body, reply: Reply) -> None:
        prompt, request_id = body["prompt"], str(body["request_id"])
        assert isinstance(prompt, list)
        fault = next((what for part, what in self.faults.items() if part in request_id), None)
        if fault == "refused":
            await reply.whole('{"error": {"message": "the prompt is too long"}}', status=400)
            return
        key = json.dumps([prompt, body["cache_salt"] if self.salted else ""])
        self.counters["vllm:prefix_cache_queries"] += len(prompt)
        self.hits[request_id] = len(prompt) if key in self.cached else 0
        self.counters["vllm:prefix_cache_hits"] += self.hits[request_id]
        self.cached.add(key)
        self.started.append(request_id)
        self.running += 1
        try:
            await self._stream(prompt, request_id, int(str(body["max_tokens"])), fault, reply)
        finally:
            self.running -= 1
            self.ended.set()

    async def _stream(self, prompt: list[int], request_id: str, count: int, fault: str | None, reply: Reply) -> None:
        await reply.start()
        chunks = -(-len(prompt) // self.chunk_tokens)
        await asyncio.sleep(STEP_SECONDS * chunks * self.interval)
        self.counters["vllm:prompt_tokens"] += len(prompt) + self.extra_prompt_tokens
        if self.restarts and "injected" in request_id:
            self.restart()
        for position in range(count):
            if fault == "complained" and position == 2:
                await reply.event({"error": {"message": "a cache block was lost", "code": 500}})
            elif fault is not None and position == 2:
                await self._fail(fault, reply)
                return
            self.counters["vllm:generation_tokens"] += 1
            if position == count - 1:
                self.queue.append(0.25)
                self.prefill.append(0.5)
            await reply.event(self._chunk(prompt, request_id, position, last=position == count - 1))
            await asyncio.sleep(STEP_SECONDS)
        details = {"cached_tokens": self.hits[request_id]}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "prompt_tokens_details": details}
        await reply.event({"choices": [], "usage": usage})
        await reply.event("[DONE]")
        await reply.end()

    async def _fail(self, fault: str, reply: Reply) -> None:
        if fault == "error":
            await reply.event({"error": {"message": "the engine ran out of memory", "code": 500}})
            await reply.event("[DONE]")
            await reply.end()
        elif fault == "unfinished":
            await reply.end()
        else:
            reply.cut()

    def _chunk(self, prompt: list[int], request_id: str, position: int, *, last: bool) -> Body:
        token, logprob = token_of(prompt, position)
        shift = self.paced_logprob_shift if self.interval > 1 else 0.0
        shift += 0.1 * self.started.index(request_id) if self.unsteady else 0.0
        choice = {
            "index": 0,
            "text": chr(97 + token % 26),
            "logprobs": {"tokens": [f"token_id:{token}"], "token_logprobs": [logprob + shift]},
            "finish_reason": "length" if last else None,
        }
        return {"choices": [choice], "usage": {"completion_tokens": position + 1}}


@dataclass
class Keeper:
    """A sink that keeps what it is given, in order; `on_event` may do something at a moment of the run."""

    on_event: Callable[[ProgressEvent], Awaitable[None]] | None = None
    events: list[ProgressEvent] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)

    async def event(self, event: ProgressEvent) -> None:
        self.events.append(event)
        if self.on_event is not None:
            await self.on_event(event)

    async def request(self, record: RequestRecord) -> None:
        self.requests.append(record)

    async def block(self, record: BlockRecord) -> None:
        self.blocks.append(record)


@dataclass
class Applier:
    """A settings applier that sets the fake's pacing and counts revisions."""

    engine: FakeEngine
    applied: list[str] = field(default_factory=list)

    async def __call__(self, arm: Arm) -> int:
        self.applied.append(arm.name)
        self.engine.interval = arm.pacing.effective_interval
        return len(self.applied)
