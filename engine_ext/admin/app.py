"""The admin port's routes. They know nothing of vLLM: they ask the engine cores and speak HTTP."""

import asyncio
import secrets
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from paceline.engine_ext.admin.cores import CoresUnavailableError, EngineCores
from paceline.engine_ext.admin.monitor import Monitor
from paceline.engine_ext.admin.problems import ProblemError, on_problem, problem
from paceline.engine_ext.live import describe
from paceline.engine_ext.methods import APPLY_METHOD, STATE_METHOD, STEPS_METHOD
from paceline.engine_ext.settings import LiveSettings, Verdict
from paceline.engine_ext.telemetry.steps import MAX_RECORDS

MAX_BODY_BYTES: Final = 65_536
ENGINE_FIELDS: Final = ("engine", "epoch", "revision", "step", "paced", "reasons")


def build_app(cores: EngineCores, monitor: Monitor, token: str) -> FastAPI:
    """Build the admin application; every route but the health ones wants the bearer `token`."""
    app = FastAPI(title="Paceline engine", openapi_url="/paceline/v1/openapi.json", docs_url=None, redoc_url=None)
    app.add_exception_handler(ProblemError, on_problem)
    app.add_exception_handler(CoresUnavailableError, _on_unavailable)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    _add_routes(app, cores, _bearer(token))
    _add_health(app, monitor)
    return app


def _bearer(token: str) -> Any:
    expected = token.encode()

    async def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), expected):
            detail = "send `Authorization: Bearer <token>` with the token of PACELINE_ADMIN_TOKEN_FILE"
            raise ProblemError(HTTPStatus.UNAUTHORIZED, detail)

    return Depends(check)


def _add_routes(app: FastAPI, cores: EngineCores, bearer: Any) -> None:
    writing = asyncio.Lock()

    @app.get("/paceline/v1/settings", dependencies=[bearer])
    async def get_settings() -> dict[str, Any]:
        """Return the settings that run, and the state of every engine core."""
        return _report(await cores.ask(STATE_METHOD))

    @app.put("/paceline/v1/settings", dependencies=[bearer])
    async def put_settings(request: Request) -> dict[str, Any]:
        """Take over settings; answers once every engine core runs them."""
        settings = _parse(await _body(request))
        async with writing:
            answers = await cores.ask(APPLY_METHOD, settings.model_dump_json(by_alias=True, exclude_none=True))
        _refuse(settings, answers)
        return _report(answers)

    @app.get("/paceline/v1/steps", dependencies=[bearer])
    async def get_steps(
        after: Annotated[int | None, Query(ge=0)] = None, limit: Annotated[int, Query(ge=0, le=MAX_RECORDS)] = 100
    ) -> dict[str, Any]:
        """Return the step counters of all engine cores together, and step records of each."""
        answers = await cores.ask(STEPS_METHOD, after, limit)
        records = [record for answer in answers for record in answer["records"]]
        return {"counters": _sum([a["counters"] for a in answers]), "records": records, "engines": len(answers)}


def _add_health(app: FastAPI, monitor: Monitor) -> None:
    @app.get("/healthz", response_model=None)
    async def healthz() -> dict[str, Any] | JSONResponse:
        """Answer 503 when work waits and no step is made."""
        if (complaint := monitor.complaint) is not None:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, complaint)
        return {"status": "ok"}

    @app.get("/readyz", response_model=None)
    async def readyz() -> dict[str, Any] | JSONResponse:
        """Answer 200 once every engine core has said which settings it runs."""
        if not monitor.states:
            detail = monitor.trouble or "the engine has not yet said which settings it runs"
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)
        return {"status": "ready"}


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            detail = f"settings are never longer than {MAX_BODY_BYTES} bytes"
            raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    return body


def _parse(body: bytes) -> LiveSettings:
    try:
        return LiveSettings.model_validate_json(body)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, describe(error), errors=findings) from error


def _report(answers: list[dict[str, Any]]) -> dict[str, Any]:
    reasons = {reason: None for answer in answers for reason in answer["reasons"]}
    oldest = min(answers, key=lambda answer: (answer["epoch"], answer["revision"]))
    return {
        "settings": oldest["settings"],
        "engines": [{key: answer[key] for key in ENGINE_FIELDS} for answer in answers],
        "compatible": all(answer["compatible"] for answer in answers),
        "reasons": list(reasons),
        "pacing": [answer["pacing"] for answer in answers],
        "coalescing": [answer["coalescing"] for answer in answers],
        "pageGate": [answer["pageGate"] for answer in answers],
    }


def _refuse(settings: LiveSettings, answers: list[dict[str, Any]]) -> None:
    """Raise the problem of settings that some engine core did not take over."""
    if any(answer["verdict"] is None for answer in answers):
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(_report(answers)["reasons"]))
    refused = [answer for answer in answers if answer["verdict"] in (Verdict.STALE, Verdict.CONFLICT)]
    if not refused:
        return
    running = refused[0]
    given = f"epoch {settings.epoch}, revision {settings.revision}"
    runs = f"epoch {running['epoch']}, revision {running['revision']}"
    if running["verdict"] == Verdict.STALE:
        detail = f"{given} is older than what the engine runs ({runs}); read the settings again and raise the revision"
    else:
        detail = f"{given} already runs with other settings; two writers used one revision, so raise it"
    raise ProblemError(HTTPStatus.CONFLICT, detail, **_report(answers))


def _sum(counters: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for one in counters:
        for key, value in one.items():
            if isinstance(value, dict):
                total[key] = _sum([total.get(key, {}), value])
            else:
                total[key] = total.get(key, 0) + value
    return total


async def _on_unavailable(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CoresUnavailableError)
    missing = [{"engine": rank, "message": reason} for rank, reason in sorted(error.missing.items())]
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), engines=missing)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors()))


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail))
