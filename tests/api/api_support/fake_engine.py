"""A small stand-in for an engine: its admin port as docs/interfaces.md describes it, with faults to order, and as much
of vLLM's OpenAI API as the benchmark uses."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Header
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from api_support.fake_core import FakeCore
from paceline.engine_ext.settings import LiveSettings, Verdict, judge

TOKEN = "admin-secret"


@dataclass
class FakeEngine:
    """Judges settings as a real engine does. `refuse` answers 422, `silent_cores` leaves cores behind (503)."""

    core: FakeCore = field(default_factory=FakeCore)
    cores: int = 1
    refuse: str | None = None
    silent: bool = False
    reasons: tuple[str, ...] = ()
    uncoalesced: tuple[str, ...] = ()
    page_gate: str | None = None
    shown: list[dict[str, Any]] = field(default_factory=list)
    pushes: list[LiveSettings] = field(default_factory=list)

    @property
    def settings(self) -> LiveSettings:
        """What the engine runs."""
        return self.core.settings

    @settings.setter
    def settings(self, settings: LiveSettings) -> None:
        self.core.settings = settings

    def app(self) -> FastAPI:
        """Return the admin port and the OpenAI API, on one port."""
        app = FastAPI()
        self._add_openai(app)

        @app.get("/paceline/v1/settings")
        async def read(authorization: str = Header("")) -> JSONResponse:
            return self._guard(authorization) or self._reply()

        @app.put("/paceline/v1/settings")
        async def write(body: LiveSettings, authorization: str = Header("")) -> JSONResponse:
            if denied := self._guard(authorization):
                return denied
            self.pushes.append(body)
            if self.silent:
                return _problem(503, "engine core 0 did not answer in time")
            if self.refuse:
                return _problem(422, self.refuse)
            verdict = judge(self.settings, body)
            if verdict in (Verdict.STALE, Verdict.CONFLICT):
                return _problem(409, f"{verdict.value}: the engine runs {self.settings.fence}")
            self.settings = body
            return self._reply()

        @app.get("/paceline/v1/steps")
        async def steps(after: int = 0, limit: int = 100) -> JSONResponse:
            # A reader that pages from 0 sees the steps up to then: at 4 ms a step it would never catch up.
            self.shown = list(self.core.steps) if after == 0 else self.shown
            newer = [step for step in self.shown if step["step"] > after]
            return JSONResponse({"records": newer[:limit], "counters": {}, "engines": 1})

        return app

    def _add_openai(self, app: FastAPI) -> None:
        @app.get("/v1/models")
        async def models() -> JSONResponse:
            return JSONResponse({"data": [{"id": "tiny", "max_model_len": 32_768}]})

        @app.get("/version")
        async def version() -> JSONResponse:
            return JSONResponse({"version": "0.32.0"})

        @app.post("/tokenize")
        async def tokenize(body: dict[str, Any]) -> JSONResponse:
            return JSONResponse({"tokens": list(body["prompt"].encode())})

        @app.get("/metrics")
        async def metrics() -> PlainTextResponse:
            return PlainTextResponse(self._metrics())

        @app.post("/v1/completions")
        async def completions(body: dict[str, Any]) -> StreamingResponse:
            return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        made, limit, prompt = 0, body["max_tokens"], len(body["prompt"])
        async for token in self.core.complete(body["request_id"], prompt, limit):
            made += 1
            choice = {
                "index": 0,
                "text": f"{token} ",
                "logprobs": {"tokens": [f"token_id:{token}"], "token_logprobs": [-0.5]},
                "finish_reason": "length" if made == limit else None,
            }
            usage = {"prompt_tokens": prompt, "completion_tokens": made, "prompt_tokens_details": {"cached_tokens": 0}}
            yield f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    def _metrics(self) -> str:
        labels = '{engine="0",model_name="tiny"}'
        counters = {
            "num_preemptions": 0,
            "prefix_cache_queries": self.core.prompt_tokens,
            "prefix_cache_hits": 0,
            "prompt_tokens": self.core.prompt_tokens,
            "generation_tokens": self.core.generated,
        }
        lines = [f"# TYPE vllm:{name} counter\nvllm:{name}_total{labels} {value}" for name, value in counters.items()]
        gauges = {"num_requests_running": len(self.core.running), "num_requests_waiting": 0}
        lines += [f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {value}" for name, value in gauges.items()]
        return "\n".join(lines) + "\n"

    def _guard(self, authorization: str) -> JSONResponse | None:
        return None if authorization == f"Bearer {TOKEN}" else _problem(401, "wrong token")

    def _reply(self) -> JSONResponse:
        cores = [
            {
                "engine": rank,
                "epoch": self.settings.epoch,
                "revision": self.settings.revision,
                "step": 0,
                "paced": not self.reasons,
                "reasons": list(self.reasons),
            }
            for rank in range(self.cores)
        ]
        settings = self.settings.model_dump(mode="json", by_alias=True)
        return JSONResponse(
            {
                "settings": settings,
                "engines": cores,
                "compatible": not self.reasons,
                "reasons": list(self.reasons),
                "coalescing": [{"active": not self.uncoalesced, "obstacles": self.uncoalesced} for _ in cores],
                "pageGate": [{"mode": "AnyPage", "message": self.page_gate} for _ in cores],
            }
        )


def _problem(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"status": status, "detail": detail}, status, media_type="application/problem+json")
