"""Errors that no handler expects."""

import httpx
from fastapi import FastAPI

from paceline.control_api import problems


async def test_what_nobody_expected_is_a_problem_document_too() -> None:
    app = FastAPI()
    problems.install(app)

    @app.get("/crash")
    async def crash() -> None:
        raise LookupError("a secret detail")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        answer = await client.get("/crash")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:paceline:problem:unexpected"
    assert "secret" not in answer.text
