"""The engine under test, as the benchmark reaches it: vLLM's OpenAI API, its metrics page, and our admin port."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx

from paceline.bench.clock import RunClock
from paceline.bench.counters import CACHE_CONFIG, Page, parse_page
from paceline.bench.prompts import SAMPLE_TEXT, prompt_pool
from paceline.bench.received import RequestIdentity
from paceline.bench.records import EngineFingerprint
from paceline.bench.steps import EngineStep
from paceline.bench.stream import Stream

CONNECT_SECONDS: Final = 10.0
STEPS_PER_PAGE: Final = 500
ANSWER_SECONDS: Final = 60.0
"""How long a plain question (models, metrics) may take on a busy engine."""


class EngineError(RuntimeError):
    """The engine can't be measured: not reached, or it lacks what a measurement needs. The message says what to do."""


@dataclass(frozen=True)
class EngineAddress:
    """Where an engine listens. `url` is the OpenAI API's root without `/v1`; `admin_url` the admin port's root."""

    url: str
    api_key: str | None = None
    admin_url: str | None = None
    admin_token: str | None = None


class EngineClient:
    """Talks to one engine; an asynchronous context manager.

    The limits of the HTTP client are lifted, so that none of its queues is ever measured: no bound on connections,
    none on waiting for one, a connection of its own for every request, no read timeout (a workload has its own).
    """

    def __init__(self, address: EngineAddress):
        self.address = address
        headers = {"Accept-Encoding": "identity"}
        if address.api_key:
            headers["Authorization"] = f"Bearer {address.api_key}"
        self._client = httpx.AsyncClient(
            base_url=address.url,
            headers=headers,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            trust_env=False,
        )
        self._model = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def fingerprint(self) -> EngineFingerprint:
        """Ask the engine who it is. Its first served model is the one that is measured."""
        models = (await self._ask("/v1/models")).json()["data"]
        if not models:
            raise EngineError(f"the engine at {self.address.url} serves no model")
        self._model = models[0]["id"]
        page = await self.metrics()
        return EngineFingerprint(
            version=(await self._ask("/version")).json().get("version"),
            model=self._model,
            max_model_len=models[0].get("max_model_len"),
            cache_config=page.labels(CACHE_CONFIG),
        )

    async def prompt_pool(self) -> tuple[int, ...]:
        """Return the token ids that prompts are drawn from."""
        body = {"model": self._model, "prompt": SAMPLE_TEXT, "add_special_tokens": False}
        answer = await self._ask("/tokenize", body)
        return prompt_pool(answer.json()["tokens"])

    async def metrics(self) -> Page:
        """Read the engine's metrics page."""
        return parse_page((await self._ask("/metrics")).text)

    async def steps(self) -> list[EngineStep] | None:
        """Read the steps that the engine still has records of; None where its admin port is not known."""
        if self.address.admin_url is None:
            return None
        found: dict[tuple[int, int], EngineStep] = {}
        while True:
            after = _read_by_all_engines(found)
            query = f"/paceline/v1/steps?after={after}&limit={STEPS_PER_PAGE}"
            page = [EngineStep.model_validate(record) for record in (await self._ask_admin(query)).json()["records"]]
            fresh = {(step.engine, step.step): step for step in page if (step.engine, step.step) not in found}
            found |= fresh
            # An engine that goes on stepping always has something fresh: a page that it did not fill is the newest.
            if not fresh or max(Counter(step.engine for step in page).values()) < STEPS_PER_PAGE:
                return list(found.values())

    def completion(self, clock: RunClock, identity: RequestIdentity, prompt: list[int], cache_salt: str) -> Stream:
        """Prepare a greedy completion of exactly `identity.max_tokens` tokens; its body is built here, not when sent.

        Logprobs with tokens spelled as ids tell each chunk's tokens without echoing the prompt, as vLLM's
        `return_token_ids` would. A prefix cache only ever hits a prompt of the same salt.
        """
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": identity.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "logprobs": 0,
            "return_tokens_as_token_ids": True,
            "cache_salt": cache_salt,
            "request_id": identity.request_id,
        }
        return Stream(self._client, clock, identity, self._client.build_request("POST", "/v1/completions", json=body))

    async def _ask_admin(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.address.admin_token}"} if self.address.admin_token else {}
        return await self._ask(f"{(self.address.admin_url or '').rstrip('/')}{path}", headers=headers)

    async def _ask(
        self, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        method = "GET" if body is None else "POST"
        try:
            answer = await self._client.request(method, path, json=body, headers=headers, timeout=ANSWER_SECONDS)
        except httpx.HTTPError as error:
            raise EngineError(
                f"no answer from the engine at {self.address.url} to {method} {path}: {type(error).__name__} {error}"
            ) from error
        if answer.status_code != httpx.codes.OK:
            hint = "; check its API key or admin token" if answer.status_code == httpx.codes.UNAUTHORIZED else ""
            raise EngineError(
                f"the engine answered HTTP {answer.status_code} to {method} {path}{hint}: {answer.text[:300]}"
            )
        return answer


def _read_by_all_engines(found: Iterable[tuple[int, int]]) -> int:
    newest: dict[int, int] = {}
    for engine, step in found:
        newest[engine] = max(step, newest.get(engine, 0))
    return min(newest.values(), default=0)
