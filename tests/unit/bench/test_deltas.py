import json

import pytest

from paceline.bench.clock import Instant
from paceline.bench.deltas import Delta, read_delta
from paceline.bench.received import Received, RequestIdentity
from paceline.bench.records import RequestRecord, RequestState, Role, Usage

IDENTITY = RequestIdentity(
    "r", Role.INJECTED, index=0, arm="off", block=0, warm_up=False, prompt_tokens=4, max_tokens=3
)


def chat(**delta: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def received(*events: str, done: bool = True) -> tuple[Received, RequestRecord]:
    """Feed events that arrive at 1, 2, 3, ... seconds."""
    state = Received(status=200)
    for second, event in enumerate(events, start=1):
        state.take(read_delta(event), Instant(float(second), 1_000.0 + second))
    state.done = done
    conclusion = state.conclude()
    return state, state.record(IDENTITY, 0.0, 99.0, conclusion)


def test_the_first_token_is_the_first_delta_that_bears_one() -> None:
    """Case B1: not the role chunk, not an empty one, and reasoning counts; usage without choices is read."""
    _, record = received(
        chat(role="assistant", content=""),
        chat(content=""),
        chat(reasoning="Hm"),
        chat(content="Yes"),
        json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        json.dumps({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}),
    )
    assert record.first_token_seconds == 3.0
    assert record.chunks.received_seconds == (3.0, 4.0)
    assert record.chunks.received_wall_seconds == (1_003.0, 1_004.0)
    assert record.usage == Usage(prompt_tokens=4, completion_tokens=2)
    assert record.state is RequestState.FINISHED
    assert record.finish_reason == "stop"
    assert record.token_source is None
    assert record.chunks.tokens == (0, 0)  # the engine did not say, and a chunk is no token


@pytest.mark.parametrize(
    ("delta", "bears"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"content": None}, False),
        ({"content": "x"}, True),
        ({"reasoning": "x"}, True),
        ({"reasoning_content": "x"}, True),
        ({"refusal": "x"}, True),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, True),
        ({"tool_calls": []}, False),
    ],
)
def test_which_chat_deltas_bear_a_token(delta: dict[str, object], *, bears: bool) -> None:
    assert read_delta(chat(**delta)).bears_token is bears


def completion(tokens: list[str], text: str = "", **more: object) -> str:
    logprobs = {"tokens": tokens, "token_logprobs": [-1.5] * len(tokens)}
    return json.dumps({"choices": [{"text": text, "logprobs": logprobs, "finish_reason": None}], **more})


def test_tokens_are_counted_from_logprobs_even_where_their_text_is_held_back() -> None:
    delta = read_delta(completion(["token_id:7", "token_id:9"]))
    assert (delta.bears_token, delta.tokens, delta.token_source) == (True, 2, "logprobs")
    assert delta.token_ids == (7, 9)
    assert delta.logprobs == (-1.5, -1.5)


@pytest.mark.parametrize("spelled", [["token_id:", "Hello"], ["token_id:"], ["Hello"], ["token_id:1", "token_id:x"]])
def test_tokens_spelled_as_text_are_counted_and_have_no_ids(spelled: list[str]) -> None:
    delta = read_delta(completion(spelled))
    assert (delta.tokens, delta.token_ids) == (len(spelled), ())


def test_token_ids_go_before_logprobs() -> None:
    event = {"choices": [{"text": "x", "token_ids": [5, 6, 7], "logprobs": None}]}
    delta = read_delta(json.dumps(event))
    assert (delta.tokens, delta.token_source, delta.token_ids) == (3, "token_ids", (5, 6, 7))


def test_chat_logprobs_are_counted_too() -> None:
    content = [{"token": "token_id:3", "logprob": -0.5}, {"token": "token_id:4", "logprob": None}]
    delta = read_delta(json.dumps({"choices": [{"delta": {"content": "ab"}, "logprobs": {"content": content}}]}))
    assert (delta.tokens, delta.token_ids, delta.logprobs) == (2, (3, 4), (-0.5, None))


def test_running_usage_counts_where_nothing_else_does() -> None:
    def event(text: str, total: int) -> str:
        return json.dumps({"choices": [{"text": text}], "usage": {"completion_tokens": total}})

    _, record = received(event("a", 1), event("", 1), event("bcd", 4))
    assert record.chunks.tokens == (1, 3)
    assert record.chunks.received_seconds == (1.0, 3.0)
    assert record.token_source == "usage"
    assert record.output_tokens == 4


def test_engine_times_and_cached_tokens_are_read_where_the_engine_gives_them() -> None:
    last = {
        "choices": [],
        "usage": {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 16}},
        "metrics": {"queue_time_ms": 250.0, "time_to_first_token_ms": 1_500.0},
    }
    _, record = received(completion(["token_id:1"]), json.dumps(last))
    assert (record.queue_seconds, record.prefill_seconds, record.usage.cached_tokens) == (0.25, 1.5, 16)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{"error": {"message": "out of memory", "code": 500}}', "out of memory"),
        ('{"error": "out of memory"}', "out of memory"),
        ('{"object": "error", "message": "old style"}', "old style"),
        ("not json", "is not JSON"),
        ("[1]", "is not a JSON object"),
    ],
)
def test_an_error_event_is_an_error(data: str, said: str) -> None:
    assert said in str(read_delta(data).error)
    _, record = received(completion(["token_id:1"]), data)
    assert record.state is RequestState.FAILED
    assert said in str(record.error)


FINISHED = json.dumps({"choices": [{"text": "x", "token_ids": [1], "finish_reason": "length"}]})


@pytest.mark.parametrize(
    ("events", "done", "state", "said"),
    [
        ([FINISHED], True, RequestState.FINISHED, None),
        ([FINISHED], False, RequestState.INCOMPLETE, "without its end mark"),
        ([completion(["token_id:1"])], True, RequestState.INCOMPLETE, "without a finish reason"),
        ([FINISHED.replace("length", "abort")], True, RequestState.FAILED, "gave up"),
        (
            [FINISHED, json.dumps({"choices": [], "usage": {"completion_tokens": 2}})],
            True,
            RequestState.INCOMPLETE,
            "made 2 tokens, and 1 arrived",
        ),
    ],
)
def test_how_a_stream_ended(events: list[str], state: RequestState, said: str | None, *, done: bool) -> None:
    _, record = received(*events, done=done)
    assert record.state is state
    assert said is None if record.error is None else str(said) in record.error


def test_an_empty_delta_says_nothing() -> None:
    assert read_delta("{}") == Delta()
