"""Requests to the control API about the profiles of a lab, and what is answered to bad ones."""

from typing import Any

import httpx
from oplab import Lab

FIXED = {"mode": "Fixed", "interval": 8}
NOW = {"wait": "0s"}


def live(lab: Lab, part: str = "pacing", name: str = "web") -> str:
    """Return the path of a live part of a profile."""
    return f"/v1/profiles/{lab.space}/{name}/{part}"


def plan_for(lab: Lab) -> dict[str, Any]:
    return {
        "name": "unpaced against N=8",
        "profile": f"{lab.space}/web",
        "workload": {"kind": "MixedPhase", "injectedPromptTokens": 1024},
        "arms": [{"name": "unpaced"}, {"name": "n8", "pacing": FIXED}],
    }


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    document: dict[str, Any] = response.json()
    assert document["type"] == f"urn:paceline:problem:{kind}"
    return document
