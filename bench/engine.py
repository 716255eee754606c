"""The engine under test, as the benchmark reaches it: vLLM's OpenAI API, its metrics page, and our admin port."""

import json
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self

import aiohttp

from paceline.bench.clock import RunClock
from paceline.bench.counters import CACHE_CONFIG, Page, parse_page
from paceline.bench.prompts import SAMPLE_TEXT, prompt_pool
from paceline.bench.received import RequestIdentity
from paceline.bench.records import EngineFingerprint
from paceline.bench.steps import EngineStep
from paceline.bench.stream import Stream, tracing

CONNECT_SECONDS: Final = 10.0
READ_BUFFER_BYTES: Final = 16 * 2**20
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

    def __post_init__(self) -> None:
        # Paths are put behind the roots as they are.
        object.__setattr__(self, "url", self.url.rstrip("/"))
        object.__setattr__(self, "admin_url", self.admin_url and self.admin_url.rstrip("/"))


class EngineClient:
    """Talks to one engine; an asynchronous context manager.

    The limits of the HTTP client are lifted, so that none of its queues is ever measured: no bound on connections, a
    connection of its own for every request, buffers of megabytes, no read timeout (a workload has its own).
    """

    def __init__(self, address: EngineAddress):
        self.address = address
        self._model = ""
        self._open: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Accept-Encoding": "identity"}
        if self.address.api_key:
            headers["Authorization"] = f"Bearer {self.address.api_key}"
        self._open = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            trace_configs=[tracing()],
            read_bufsize=READ_BUFFER_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._open is None:
            raise RuntimeError("an EngineClient is used inside `async with` only")
        return self._open

    async def fingerprint(self) -> EngineFingerprint:
        """Ask the engine who it is. Its first served model is the one that is measured."""
        models = await self._ask_json("/v1/models", field="data")
        if not models:
            raise EngineError(f"the engine at {self.address.url} serves no model")
        self._model = models[0]["id"]
        page = await self.metrics()
        return EngineFingerprint(
            version=await self._ask_json("/version", field="version"),
            model=self._model,
            max_model_len=models[0].get("max_model_len"),
            cache_config=page.labels(CACHE_CONFIG),
        )

    async def prompt_pool(self) -> tuple[int, ...]:
        """Return the token ids that prompts are drawn from."""
        body = {"model": self._model, "prompt": SAMPLE_TEXT, "add_special_tokens": False}
        return prompt_pool(await self._ask_json("/tokenize", field="tokens", body=body))

    async def metrics(self) -> Page:
        """Read the engine's metrics page."""
        return parse_page(await self._ask(self.address.url + "/metrics"))

    async def newest_step(self) -> int:
        """Return a step that every engine core has finished, as recent as can be told; 0 where none is known."""
        if self.address.admin_url is None:
            return 0
        page, engines = await self._step_page("limit=1")
        return min((step.step for step in page), default=0) if len(page) == engines else 0

    async def steps(self, after: int = 0) -> list[EngineStep] | None:
        """Read the records of the steps after `after`, as far as the engine still holds them.

        None where its admin port is not known.
        """
        if self.address.admin_url is None:
            return None
        found: dict[tuple[int, int], EngineStep] = {}
        while True:
            page, _ = await self._step_page(f"after={after}&limit={STEPS_PER_PAGE}")
            found |= {(step.engine, step.step): step for step in page}
            counts = Counter(step.engine for step in page)
            newest = {step.engine: step.step for step in page}
            # Engines number their steps each for itself: one that did not fill its page has no more.
            unread = [newest[engine] for engine, count in counts.items() if count >= STEPS_PER_PAGE]
            if not unread:
                return list(found.values())
            after = min(unread)

    async def _step_page(self, query: str) -> tuple[list[EngineStep], int]:
        """Return records of every engine core, oldest first of each, and how many cores there are."""
        headers = {"Authorization": f"Bearer {self.address.admin_token}"} if self.address.admin_token else {}
        answer = json.loads(await self._ask(f"{self.address.admin_url}/paceline/v1/steps?{query}", headers=headers))
        return [EngineStep.model_validate(record) for record in answer["records"]], answer["engines"]

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
        url = self.address.url + "/v1/completions"
        return Stream(self._session, url, json.dumps(body).encode(), clock, identity)

    async def _ask_json(self, path: str, *, field: str, body: dict[str, Any] | None = None) -> Any:
        answer = await self._ask(self.address.url + path, body)
        try:
            return json.loads(answer)[field]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self.address.url}{path} gave no vLLM answer, is it an engine? {answer[:200]}"
            ) from error

    async def _ask(self, url: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> str:
        method = "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(method, url, json=body, headers=headers, timeout=timeout) as answer:
                text = await answer.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"no answer from the engine to {method} {url}: {type(error).__name__} {error}") from error
        if answer.status != HTTPStatus.OK:
            hint = "; check its API key or admin token" if answer.status == HTTPStatus.UNAUTHORIZED else ""
            raise EngineError(f"the engine answered HTTP {answer.status} to {method} {url}{hint}: {text[:300]}")
        return text
