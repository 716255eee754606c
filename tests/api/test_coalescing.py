"""Coalescing of a local run, switched live over the API: what it shares with pacing is tested there."""

from pathlib import Path

import pytest
from api_support.apis import Api
from api_support.fake_engine import FakeEngine
from api_support.servers import wait_until
from api_support.state import kept

from paceline.engine_ext.settings import FinalChunk

PACING = "/v1/profiles/lab/tiny/pacing"
COALESCING = "/v1/profiles/lab/tiny/coalescing"


def test_coalescing_is_switched_as_pacing_is_and_leaves_it_alone(api: Api, engine: FakeEngine, state: Path) -> None:
    api.client.put(PACING, json={"mode": "Fixed", "interval": 8})
    etag = api.client.get(COALESCING).headers["etag"]
    response = api.client.put(COALESCING, json={"finalChunk": "Enabled"}, headers={"If-Match": etag})
    assert response.status_code == 200
    body = response.json()
    assert body["coalescing"] == {"finalChunk": "Enabled", "maxSpanTokens": 8_192, "admission": "SinglePrefill"}
    assert (body["revision"], body["applied"]) == (2, True)
    assert engine.settings == kept(state)
    assert engine.settings.coalescing.final_chunk is FinalChunk.ENABLED
    assert engine.settings.pacing.interval == 8
    assert api.client.get("/v1/profiles/lab/tiny").json()["status"]["coalescing"] == body["coalescing"]
    assert api.client.put(COALESCING, json=body["coalescing"], headers={"If-Match": etag}).status_code == 412


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"admission": "Exclusive"}, "give finalChunk too"),
        ({"finalChunk": "On"}, "'Enabled' or 'Disabled'"),
        ({"finalChunk": "Enabled", "maxSpanTokens": 63}, "greater than or equal to 64"),
        ({"finalChunk": "Enabled", "interval": 4}, "interval"),
    ],
)
def test_coalescing_that_says_too_little_or_wrong_changes_nothing(
    api: Api, engine: FakeEngine, body: dict[str, object], told: str
) -> None:
    response = api.client.put(COALESCING, json=body)
    assert response.status_code == 422
    assert told in response.text
    assert engine.pushes == []


def test_why_nothing_is_coalesced_is_told_where_coalescing_is_wanted(api: Api, engine: FakeEngine) -> None:
    engine.uncoalesced = ("cache blocks of 784 tokens are no multiple of 64",)
    (shown,) = api.client.get(COALESCING).json()["engines"]
    assert shown["uncoalesced"] is None
    (shown,) = api.client.put(COALESCING, json={"finalChunk": "Enabled"}).json()["engines"]
    assert (shown["uncoalesced"], shown["applied"]) == (engine.uncoalesced[0], True)


def test_a_change_of_coalescing_waits_for_an_engine_that_is_silent_and_is_counted(api: Api, engine: FakeEngine) -> None:
    engine.silent = True
    response = api.client.put(COALESCING, json={"finalChunk": "Enabled"}, params={"wait": "300ms"})
    assert response.status_code == 202
    assert response.json()["applied"] is False
    engine.silent = False
    wait_until(lambda: engine.settings.coalescing.final_chunk is FinalChunk.ENABLED, "the retry")
    assert 'paceline_api_coalescing_changes_total{result="pending"} 1.0' in api.client.get("/metrics").text
    assert "paceline_api_pacing_changes_total{" not in api.client.get("/metrics").text
