"""Experiments that a fake engine runs in a moment, and how they are followed."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

ENDED = ("Succeeded", "Failed", "Cancelled", "Interrupted")


def plan(**changes: Any) -> dict[str, Any]:
    """A plan of one block an arm, with one resident and a prompt of four chunks."""
    workload = {"residents": 1, "residentPromptTokens": 16, "injectedPromptTokens": 2_048, "beforeSeconds": 0.05}
    base = {
        "name": "short",
        "workload": {**workload, "steadyTokens": 2, "injectedOutputTokens": 2},
        "arms": [{"name": "unpaced"}, {"name": "n4", "pacing": {"mode": "Fixed", "interval": 4}}],
        "blocks": 1,
        "warmUpBlocks": 0,
        "controlArm": False,
        # The machine that tests run on may be busy; what the audits say of it is not under test here.
        "maxClientLagMilliseconds": 60_000,
    }
    return base | changes


def long_plan(**changes: Any) -> dict[str, Any]:
    """A plan that runs until it is stopped, as far as a test can tell."""
    return plan(name="long", blocks=100, **changes)


def events(client: httpx.Client, experiment: str, headers: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of an experiment's stream: their type, id and data."""
    path = f"/v1/experiments/{experiment}/events"
    with client.stream("GET", path, headers=headers or {}, timeout=120) as response:
        assert response.status_code == 200
        event: dict[str, Any] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if not line and "data" in event:
                yield event | {"data": json.loads(event["data"])}
                event = {}
            elif name in ("event", "id", "data"):
                event[name] = value


def follow_until(client: httpx.Client, experiment: str, reached) -> dict[str, Any]:
    """Follow an experiment until `reached(summary)` is true, and return that summary."""
    for event in events(client, experiment):
        if reached(event["data"]):
            return event["data"]
    raise AssertionError("the experiment ended before")


def until_end(client: httpx.Client, experiment: str) -> dict[str, Any]:
    """Follow an experiment to its end and return all of it."""
    follow_until(client, experiment, lambda summary: summary["status"] in ENDED)
    return client.get(f"/v1/experiments/{experiment}").json()


def all_items(client: httpx.Client, path: str, **parameters: Any) -> list[dict[str, Any]]:
    """Return the items of every page of a list."""
    items, cursor = [], None
    while True:
        page = client.get(path, params=parameters | ({"cursor": cursor} if cursor else {})).json()
        items += page["items"]
        cursor = page["nextCursor"]
        if cursor is None:
            return items
