"""Rendering the chart with a real Helm."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.commands import kubernetes_command, run

sys.path.insert(0, str(Path(__file__).parent))

from charting import CHART, Helm, Render


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Run Helm with arguments; a failure is an error unless `check` is False."""
    command = kubernetes_command("helm")
    return lambda *arguments, check=True: run([command, *arguments], check=check)


@pytest.fixture
def render(helm: Helm) -> Render:
    """Render the chart with Helm's arguments and return its objects."""

    def rendered(*arguments: object, chart: Path = CHART, release: str = "paceline") -> list[dict[str, Any]]:
        answer = helm("template", release, chart, "--namespace", "paceline-system", *arguments)
        return [document for document in yaml.safe_load_all(answer.stdout) if document]

    return rendered
