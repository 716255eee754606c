"""The streaming client against a real HTTP server on the loopback interface."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from bench_fakes import Body, Handler, Reply, http_server

from paceline.bench.clock import RunClock
from paceline.bench.engine import EngineAddress, EngineClient
from paceline.bench.lag import LagMeter
from paceline.bench.received import RequestIdentity
from paceline.bench.records import RequestRecord, RequestState, Role
from paceline.bench.stream import Stream

DEADLINE = 30.0


def chunk(token: int, finish: str | None = None) -> Body:
    logprobs = {"tokens": [f"token_id:{token}"], "token_logprobs": [-0.5]}
    return {"choices": [{"text": "x", "logprobs": logprobs, "finish_reason": finish}]}


def identity(name: str = "request", prompt_tokens: int = 4) -> RequestIdentity:
    return RequestIdentity(
        name, Role.RESIDENT, index=0, arm="off", block=0, warm_up=False, prompt_tokens=prompt_tokens, max_tokens=8
    )


@asynccontextmanager
async def stream_of(handler: Handler) -> AsyncIterator[tuple[Stream, RunClock]]:
    clock = RunClock()
    async with http_server(handler) as url, EngineClient(EngineAddress(url)) as client:
        yield client.completion(clock, identity(), [1, 2, 3, 4], cache_salt="salt"), clock


async def outcome(handler: Handler) -> RequestRecord:
    async with stream_of(handler) as (stream, clock):
        return await asyncio.wait_for(stream.start(clock.seconds()), DEADLINE)


async def test_a_whole_stream_keeps_every_time_in_order() -> None:
    bodies: list[Body] = []

    async def handler(path: str, body: Body, reply: Reply) -> None:
        bodies.append({"path": path, **body})
        await reply.start()
        for event in (chunk(7), chunk(8), chunk(9, "length")):
            await reply.event(event)
        await reply.event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})
        await reply.event("[DONE]")
        await reply.end()

    record = await outcome(handler)
    assert record.state is RequestState.FINISHED
    assert record.error is None
    assert (record.output_token_ids, record.output_logprobs) == ((7, 8, 9), (-0.5, -0.5, -0.5))
    assert record.usage.prompt_tokens == 4
    assert record.sent_seconds is not None
    assert record.first_byte_seconds is not None
    assert record.first_token_seconds is not None
    times = [record.intended_seconds, record.sent_seconds, record.first_byte_seconds, record.first_token_seconds]
    assert sorted(times) == times
    assert record.chunks.received_seconds[0] == record.first_token_seconds
    assert record.chunks.tokens == (1, 1, 1)
    wall = time.time()
    assert all(wall - DEADLINE < seconds <= wall for seconds in record.chunks.received_wall_seconds)
    assert bodies[0]["path"] == "/v1/completions"
    assert bodies[0]["prompt"] == [1, 2, 3, 4]
    assert (bodies[0]["temperature"], bodies[0]["ignore_eos"], bodies[0]["cache_salt"]) == (0, True, "salt")


async def test_the_send_time_that_was_intended_is_kept_though_the_client_was_late() -> None:
    async def handler(_path: str, _body: Body, reply: Reply) -> None:
        await reply.start()
        await reply.event(chunk(1, "stop"))
        await reply.event("[DONE]")
        await reply.end()

    async with stream_of(handler) as (stream, clock):
        due = clock.seconds() - 5.0
        record = await stream.start(due)
    assert record.intended_seconds == due
    assert record.sent_seconds is not None
    assert record.sent_seconds - due >= 5.0
    assert record.time_to_first_token_seconds is not None
    assert record.time_to_first_token_seconds >= 5.0  # the client's delay is in it, and shows as lag
    lag = LagMeter(clock).lag([record], since_seconds=None)
    assert lag.max_send_lag_seconds == record.sent_seconds - due


async def test_an_error_after_http_200_is_an_error() -> None:
    async def handler(_path: str, _body: Body, reply: Reply) -> None:
        await reply.start()
        await reply.event(chunk(1))
        await reply.event({"error": {"message": "EngineCore died", "code": 500}})
        await reply.event("[DONE]")
        await reply.end()

    record = await outcome(handler)
    assert (record.state, record.error, record.http_status) == (RequestState.FAILED, "EngineCore died", 200)
    assert record.output_tokens == 1


@pytest.mark.parametrize("ending", ["no end mark", "no finish reason", "cut"])
async def test_a_stream_that_stops_short_is_incomplete(ending: str) -> None:
    async def handler(_path: str, _body: Body, reply: Reply) -> None:
        await reply.start()
        await reply.event(chunk(1, None if ending == "no finish reason" else "length"))
        if ending == "no finish reason":
            await reply.event("[DONE]")
        if ending == "cut":
            reply.cut()
        else:
            await reply.end()

    record = await outcome(handler)
    assert record.state is RequestState.INCOMPLETE
    assert record.error


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, '{"error": {"message": "the prompt is too long"}}', "HTTP 400: the prompt is too long"),
        (401, '{"error": "Unauthorized"}', "HTTP 401: Unauthorized"),
        (422, '{"detail": "no such model"}', "HTTP 422: no such model"),
        (503, "busy", "HTTP 503: busy"),
        (500, "", "HTTP 500: no reason given"),
    ],
)
async def test_a_refused_request_says_why(status: int, body: str, said: str) -> None:
    async def handler(_path: str, _body: Body, reply: Reply) -> None:
        await reply.whole(body, status=status)

    record = await outcome(handler)
    assert (record.state, record.error, record.http_status) == (RequestState.FAILED, said, status)
    assert record.first_token_seconds is None


async def test_an_engine_that_is_not_there() -> None:
    async def handler(_path: str, _body: Body, _reply: Reply) -> None:
        raise AssertionError("nobody listens any more")

    async with http_server(handler) as url:
        pass
    clock = RunClock()
    async with EngineClient(EngineAddress(url)) as client:
        record = await client.completion(clock, identity(), [1], cache_salt="s").start(clock.seconds())
    assert record.state is RequestState.FAILED
    assert "Cannot connect to host" in str(record.error)
    assert record.sent_seconds is None


async def endless(_path: str, _body: Body, reply: Reply) -> None:
    await reply.start()
    for token in range(1_000_000):
        await reply.event(chunk(token))
        await asyncio.sleep(0)


async def test_a_stream_that_the_workload_ends_keeps_what_it_read() -> None:
    async with stream_of(endless) as (stream, clock):
        stream.start(clock.seconds())
        await asyncio.wait_for(stream.has_tokens(5), DEADLINE)
        record = await stream.end(RequestState.ENDED_BY_PLAN)
    assert record is not None
    assert (record.state, record.error) == (RequestState.ENDED_BY_PLAN, None)
    assert record.output_tokens >= 5
    assert record.output_token_ids == tuple(range(record.output_tokens))


async def test_a_stream_that_is_stopped_says_why() -> None:
    async with stream_of(endless) as (stream, clock):
        stream.start(clock.seconds())
        await asyncio.wait_for(stream.first_token.wait(), DEADLINE)
        record = await stream.end(RequestState.CANCELLED, "the run was stopped")
    assert record is not None
    assert (record.state, record.error) == (RequestState.CANCELLED, "the run was stopped")


async def test_ending_a_stream_that_has_ended_keeps_its_own_state() -> None:
    async def handler(_path: str, _body: Body, reply: Reply) -> None:
        await reply.whole("no", status=500)

    async with stream_of(handler) as (stream, clock):
        assert await stream.end(RequestState.CANCELLED) is None  # it was never sent
        await stream.start(clock.seconds())
        record = await stream.end(RequestState.ENDED_BY_PLAN)
    assert record is not None
    assert record.state is RequestState.FAILED


async def test_150_streams_of_long_prompts_run_at_once() -> None:
    """Case B5: no pool or queue of the client holds a request back. The server answers nobody before all are there."""
    count, here, everybody = 150, 0, asyncio.Event()

    async def handler(_path: str, body: Body, reply: Reply) -> None:
        nonlocal here
        here += 1
        if here == count:
            everybody.set()
        await everybody.wait()
        await reply.start()
        await reply.event(chunk(1, "length"))
        prompt = body["prompt"]
        assert isinstance(prompt, list)
        await reply.event({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": 1}})
        await reply.event("[DONE]")
        await reply.end()

    prompt, clock = list(range(50_000)), RunClock()
    async with http_server(handler) as url, EngineClient(EngineAddress(url)) as client:
        streams = [
            client.completion(clock, identity(f"r{index}", len(prompt)), prompt, cache_salt="s")
            for index in range(count)
        ]
        due = clock.seconds()
        records = await asyncio.wait_for(asyncio.gather(*(stream.start(due) for stream in streams)), 120)
    assert {record.state for record in records} == {RequestState.FINISHED}
    assert {record.usage.prompt_tokens for record in records} == {50_000}
    for record in records:
        assert record.sent_seconds is not None
        assert record.first_token_seconds is not None
        assert record.intended_seconds <= record.sent_seconds <= record.first_token_seconds


async def test_one_read_may_bring_several_tokens() -> None:
    """A late reader gets many events at once: they share a time, and are still counted one by one."""

    async def handler(_path: str, _body: Body, reply: Reply) -> None:
        await reply.start()
        events = [chunk(token) for token in range(4)] + [chunk(4, "length")]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        reply.writer.write(f"{len(text):x}\r\n".encode() + text.encode() + b"\r\n")
        await reply.end()

    record = await outcome(handler)
    assert record.state is RequestState.FINISHED
    assert record.chunks.tokens == (1, 1, 1, 1, 1)
    assert len(set(record.chunks.received_seconds)) == 1
