"""Asks every engine core behind this API process, each on its own, so that a late one can be named."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

ANSWER_SECONDS: Final = 60.0
"""How long a core may take to answer: it does so between two steps, and a long step is no fault."""


class CoresUnavailableError(RuntimeError):
    """Some engine cores gave no answer; `missing` maps their ranks to the reason, `answers` holds the others'."""

    def __init__(self, missing: dict[int, str], answers: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"engine core {rank}: {reason}" for rank, reason in sorted(missing.items())))
        self.missing = missing
        self.answers = answers


@dataclass(frozen=True)
class EngineCores:
    """The engine cores that vLLM's client manages; with data parallelism there are several."""

    client: Any
    answer_seconds: float = ANSWER_SECONDS

    async def ask(self, method: str, *args: Any) -> list[dict[str, Any]]:
        """Call a utility method on every engine core and return all answers, in the order of the ranks.

        Raises CoresUnavailableError when any of them fails or takes longer than `answer_seconds`.
        """
        identities = list(self.client.core_engines)
        outcomes = await asyncio.gather(
            *(self._ask_one(identity, method, *args) for identity in identities), return_exceptions=True
        )
        answers, missing = [], {}
        for identity, outcome in zip(identities, outcomes, strict=True):
            if isinstance(outcome, TimeoutError):
                missing[_rank(identity)] = f"no answer within {self.answer_seconds:g} s"
            elif isinstance(outcome, Exception):
                missing[_rank(identity)] = str(outcome) or type(outcome).__name__
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers.append(outcome)
        if missing:
            raise CoresUnavailableError(missing, answers)
        return sorted(answers, key=lambda answer: answer.get("engine", 0))

    async def _ask_one(self, identity: bytes, method: str, *args: Any) -> dict[str, Any]:
        async with asyncio.timeout(self.answer_seconds):
            answer: dict[str, Any] = await self.client._call_utility_async(method, *args, engine=identity)
        return answer


def _rank(identity: bytes) -> int:
    # vLLM names each engine core by its rank in two bytes.
    return int.from_bytes(identity, "little")
