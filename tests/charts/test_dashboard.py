"""The Grafana dashboard as a ConfigMap."""

import json

from charting import CHART, Render


def test_there_is_none_unless_asked_for(render: Render) -> None:
    assert not [each for each in render() if each["metadata"]["name"].endswith("-dashboard")]


def test_the_config_map_holds_the_file_and_the_sidecars_label(render: Render) -> None:
    objects = render("--set", "monitoring.dashboard.enabled=true", "--set", "monitoring.dashboard.labels.team=serving")
    (found,) = (each for each in objects if each["metadata"]["name"].endswith("-dashboard"))
    assert found["kind"] == "ConfigMap"
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["labels"]["team"] == "serving"
    assert json.loads(found["data"]["paceline.json"]) == json.loads(
        (CHART / "dashboards" / "paceline.json").read_text()
    )
