"""Everything that the chart renders, against a golden file for each set of values.

`PACELINE_UPDATE_GOLDEN=1 pytest tests/charts/test_golden.py` writes the files anew; read the difference.
"""

import os
from pathlib import Path

import pytest
from charting import CHART, Helm

HERE = Path(__file__).parent
VALUES = sorted((HERE / "values").glob("*.yaml"))
UPDATE = os.environ.get("PACELINE_UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("values", VALUES, ids=[path.stem for path in VALUES])
def test_the_rendered_objects_are_the_golden_ones(helm: Helm, values: Path) -> None:
    golden = HERE / "golden" / values.name
    # The definition has a test of its own; here it would hide the rest.
    arguments = ("template", "paceline", CHART, "--namespace", "paceline-system", "--values", values)
    text = helm(*arguments, "--set", "crds.enabled=false").stdout
    if UPDATE:
        golden.write_text(text)
    assert text == golden.read_text(), f"{golden.name} differs; see how to update it at the top of this file"


def test_there_is_no_golden_file_without_its_values() -> None:
    assert {path.name for path in (HERE / "golden").iterdir()} == {path.name for path in VALUES}
    assert len(VALUES) >= 3
