"""Every object that is built for every example, against a golden file.

`PACELINE_UPDATE_GOLDEN=1 pytest tests/unit/operator/test_golden.py` writes the files anew; read the difference.
"""

import os
from pathlib import Path

import pytest
import yaml
from builders import subject

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.specs.admin_token import admin_token_secret
from paceline.operator.specs.desired import desired_objects
from paceline.operator.specs.problems import cluster_problems
from paceline.operator.specs.settings_map import Ledger, settings_map
from paceline.operator.specs.workload import workload_frame

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
    if "kind: InferenceProfile" in path.read_text()
]
UPDATE = os.environ.get("PACELINE_UPDATE_GOLDEN") == "1"


def built(example: Path) -> str:
    of = subject(yaml.safe_load(example.read_text()))
    assert cluster_problems(of, has_worker_sets=True) == []
    desired = desired_objects(of)
    settings = of.spec.live_settings(epoch=1, revision=1)
    objects = [
        admin_token_secret(of, b"a key that no cluster has"),
        settings_map(of, settings, None),
        *desired.companions,
        desired.template,
        workload_frame(of, replicas=of.spec.engine.replicas),
    ]
    return yaml.safe_dump_all(objects, sort_keys=False, width=120)


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_built_objects_are_the_golden_ones(example: Path) -> None:
    golden = GOLDEN / example.name
    text = built(example)
    if UPDATE:
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), f"{golden.name} differs; see how to update it at the top of this file"


def test_there_is_no_golden_file_without_its_example() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {path.name for path in EXAMPLES}
    assert len(EXAMPLES) >= 7


def test_an_engine_reads_from_the_map_what_the_ledger_reads() -> None:
    of = subject(yaml.safe_load((EXAMPLES[0].parent / "nvidia-tp2.yaml").read_text()))
    settings = of.spec.live_settings(epoch=3, revision=7)
    manifest = settings_map(of, settings, None)
    manifest["metadata"]["resourceVersion"] = "41"
    ledger = Ledger.read(manifest)
    assert ledger == Ledger(settings, None, "41")
    assert LiveSettings.model_validate_json(manifest["data"]["settings.json"]) == settings
