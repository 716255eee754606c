"""The metrics of vLLM's own that the Grafana dashboard asks for are defined by the vLLM that is installed."""

import inspect
import re
from pathlib import Path

from vllm.v1.metrics import loggers

DASHBOARD = Path(__file__).parents[2] / "charts" / "paceline" / "dashboards" / "paceline.json"


def test_vllm_defines_what_the_dashboard_asks_for() -> None:
    asked = set(re.findall(r"vllm:[a-z_]+", DASHBOARD.read_text(encoding="utf-8")))
    defined = set(re.findall(r'name="(vllm:[a-z_]+)"', inspect.getsource(loggers)))
    assert len(asked) == 5
    assert {name.removesuffix("_bucket") for name in asked} <= defined
