"""Greedy completions over the OpenAI API, with token ids and logprobs, and how two of them compare."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

VOCABULARY = 256
LOGPROB_TOLERANCE = 0.02
"""Largest difference of a token's logprob between two runs: batches of other sizes round bfloat16 otherwise.

The tiny model forgets: a wrong block moves its logprobs beyond this only at the prompt's end, by 0.007 further back.
"""


def prompt(length: int, seed: int) -> list[int]:
    """Return token ids that no other seed shares a block with."""
    state, tokens = seed * 2_654_435_761 + 1, []
    for _ in range(length):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        tokens.append((state >> 16) % VOCABULARY)
    return tokens


@dataclass
class Completion:
    """A completion's tokens with their logprobs, and the two best candidates of each."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Take in one streamed choice."""
        self.tokens += choice.get("token_ids") or []
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        scores = choice.get("logprobs")
        if scores:
            self.logprobs += scores["token_logprobs"]
            for best in scores["top_logprobs"]:
                first, second = sorted(best.values(), reverse=True)[:2]
                self.margins.append(first - second)


def body(tokens: Sequence[int], max_tokens: int, salt: str) -> dict[str, Any]:
    """Return a request; another `salt` keeps the prefix cache of one run out of another."""
    return {
        "model": "tiny",
        "prompt": list(tokens),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # as text, several bytes of no character look alike
        "stream": True,
        "cache_salt": salt,
    }


async def stream(
    client: httpx.AsyncClient, request: dict[str, Any], headers: Mapping[str, str] | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Yield the choices of a streamed completion as they come."""
    async with client.stream("POST", "/v1/completions", json=request, headers=headers) as response:
        if response.is_error:
            await response.aread()
            raise AssertionError(f"{response.status_code}: {response.text}")
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    yield choice


async def complete(
    client: httpx.AsyncClient, request: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Completion:
    """Return a whole completion."""
    completion = Completion()
    async for choice in stream(client, request, headers):
        completion.add(choice)
    return completion


async def decoding(
    client: httpx.AsyncClient, request: dict[str, Any], headers: Mapping[str, str] | None = None
) -> asyncio.Task[Completion]:
    """Start a request and return its task once it decodes: its third token has come. Fails where it ends before."""
    begun = asyncio.Event()

    async def follow() -> Completion:
        completion = Completion()
        async for choice in stream(client, request, headers):
            completion.add(choice)
            if len(completion.tokens) >= 3:
                begun.set()
        return completion

    task, waiting = asyncio.create_task(follow()), asyncio.create_task(begun.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert not task.done(), f"the request ended before it was seen to decode: {await task}"
    return task


@asynccontextmanager
async def resident(
    client: httpx.AsyncClient, request: dict[str, Any], headers: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Have a request decode while the body runs, then abort it. Fails where it ended before the body did."""
    task = await decoding(client, request, headers)
    try:
        yield
        assert not task.done(), "the resident ended too early to be beside everything that was asked"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def first_difference(one: Completion, other: Completion) -> str | None:
    """Tell where two greedy completions differ by more than rounding; None when they don't.

    Tokens may part only where the two best candidates lay within the tolerance of each other; what follows such a
    tie is not compared.
    """
    if len(one.tokens) != len(other.tokens):
        return f"{len(one.tokens)} tokens against {len(other.tokens)}"
    for index, (mine, theirs) in enumerate(zip(one.tokens, other.tokens, strict=True)):
        if mine != theirs:
            margin = max(one.margins[index], other.margins[index])
            return (
                None if margin <= LOGPROB_TOLERANCE else f"token {index}: {mine} against {theirs}, margin {margin:.4f}"
            )
        gap = abs(one.logprobs[index] - other.logprobs[index])
        if gap > LOGPROB_TOLERANCE:
            return f"token {index}: logprobs {gap:.4f} apart"
    return None
