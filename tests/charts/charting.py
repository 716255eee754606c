"""What the chart's tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.commands import Answer

CHART = Path(__file__).parents[2] / "charts" / "paceline"
Render = Callable[..., list[dict[str, Any]]]
Helm = Callable[..., Answer]


def pod_specs(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the spec of each pod that the objects make, by the object's name."""
    specs = {}
    for each in objects:
        if each["kind"] == "Pod":
            specs[each["metadata"]["name"]] = each["spec"]
        elif "template" in each.get("spec", {}):
            specs[each["metadata"]["name"]] = each["spec"]["template"]["spec"]
    return specs
