"""What one event of a completion stream says: tokens, text, finish, usage or an error.

Reads both shapes of the OpenAI API, completions (`text`) and chat completions (`delta`), with vLLM's additions. A chunk
is never taken for a token: the engine's own token ids are counted, else its logprobs, else its running usage.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from paceline.bench.records import Usage

TOKEN_TEXT_FIELDS: Final = ("content", "reasoning", "reasoning_content", "refusal")
"""The fields of a chat delta that hold generated text."""

TOKEN_ID_PREFIX: Final = "token_id:"
"""How vLLM spells a token in logprobs when asked for `return_tokens_as_token_ids`."""


@dataclass(frozen=True)
class Delta:
    """One event. `tokens` is None where the event itself does not say how many tokens it carries.

    `total_tokens` is the running count of output tokens where the engine sends usage with every chunk; the usage event
    at the end, which has no choices, is no chunk and sets only `usage`.
    """

    bears_token: bool = False
    text: str = ""
    tokens: int | None = None
    token_source: str | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    total_tokens: int | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    queue_seconds: float | None = None
    prefill_seconds: float | None = None


def read_delta(data: str) -> Delta:
    """Interpret the data of one event, other than the end mark. What is no JSON object becomes an error."""
    try:
        event = json.loads(data)
    except json.JSONDecodeError as error:
        return Delta(error=f"an event of the stream is not JSON ({error.msg}): {data[:200]}")
    if not isinstance(event, dict):
        return Delta(error=f"an event of the stream is not a JSON object: {data[:200]}")
    if event.get("error") or event.get("object") == "error":
        return Delta(error=_error_text(event.get("error") or event))
    choices = event.get("choices") or [{}]
    choice = choices[0]
    text, bears_text = _generated_text(choice)
    tokens, ids, logprobs, source = _tokens(choice)
    usage = _usage(event.get("usage"))
    metrics = event.get("metrics") or {}
    return Delta(
        bears_token=bool(tokens) or bears_text,
        text=text,
        tokens=tokens,
        token_source=source,
        token_ids=ids,
        logprobs=logprobs,
        total_tokens=usage.completion_tokens if usage and event.get("choices") else None,
        finish_reason=choice.get("finish_reason"),
        usage=usage,
        queue_seconds=_from_milliseconds(metrics.get("queue_time_ms")),
        prefill_seconds=_from_milliseconds(metrics.get("time_to_first_token_ms")),
    )


def _generated_text(choice: dict[str, Any]) -> tuple[str, bool]:
    delta = choice.get("delta") or {}
    parts = [choice.get("text") or "", *(delta.get(name) or "" for name in TOKEN_TEXT_FIELDS)]
    text = "".join(parts)
    return text, bool(text) or bool(delta.get("tool_calls"))


def _tokens(choice: dict[str, Any]) -> tuple[int | None, tuple[int, ...], tuple[float | None, ...], str | None]:
    """Return how many tokens a choice carries, their ids and logprobs where it tells them, and what told the count."""
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs:  # the chat shape: a list of objects
        entries = logprobs["content"] or []
        spelled = [str(entry.get("token", "")) for entry in entries]
        values = tuple(entry.get("logprob") for entry in entries)
    else:
        spelled = logprobs.get("tokens") or []
        values = tuple(logprobs.get("token_logprobs") or ())
    if choice.get("token_ids"):
        ids = tuple(choice["token_ids"])
        return len(ids), ids, values, "token_ids"
    if spelled:
        return len(spelled), _spelled_ids(spelled), values, "logprobs"
    return None, (), (), None


def _spelled_ids(spelled: list[str]) -> tuple[int, ...]:
    numbers = [token.removeprefix(TOKEN_ID_PREFIX) for token in spelled if token.startswith(TOKEN_ID_PREFIX)]
    told = len(numbers) == len(spelled) and all(number.isdecimal() for number in numbers)
    return tuple(int(number) for number in numbers) if told else ()


def _usage(usage: dict[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens"),
    )


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)


def _from_milliseconds(value: float | None) -> float | None:
    return None if value is None else value / 1_000
