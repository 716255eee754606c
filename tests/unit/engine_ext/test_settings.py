"""The live settings: what is refused, how fences order them, and that they need nothing but pydantic."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from paceline.engine_ext.settings import LiveSettings, PacingMode, PacingSettings, Verdict, judge


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"pacing": {"interval": -1}}, ("pacing", "interval")),
        ({"pacing": {"interval": 1_000_000_000}}, ("pacing", "interval")),
        ({"pacing": {"interval": 1_025}}, ("pacing", "interval")),
        ({"pacing": {"interval": "4"}}, ("pacing", "interval")),
        ({"pacing": {"interval": 4.0}}, ("pacing", "interval")),
        ({"pacing": {"intervall": 4}}, ("pacing", "intervall")),
        ({"pacing": {"mode": "Off"}}, ("pacing", "mode")),
        ({"pacing": {"mode": "SLO"}}, ("pacing",)),
        ({"pacing": {"mode": "SLO", "slo": {"timePerOutputTokenMilliseconds": 0}}}, None),
        ({"epoch": -1}, ("epoch",)),
        ({"surprise": 1}, ("surprise",)),
        ({"coalescing": {"maxSpanTokens": 63}}, ("coalescing", "maxSpanTokens")),
    ],
)
def test_bad_settings_are_refused_with_their_place(document: dict[str, Any], place: tuple[str, ...] | None) -> None:
    with pytest.raises(ValidationError) as caught:
        LiveSettings.model_validate(document)
    if place is not None:
        assert caught.value.errors()[0]["loc"] == place


@pytest.mark.parametrize(
    ("mode", "interval", "effective"),
    [("Disabled", 8, 1), ("Fixed", 0, 1), ("Fixed", 1, 1), ("Fixed", 8, 8), ("Fixed", 1_024, 1_024)],
)
def test_effective_interval(mode: str, interval: int, effective: int) -> None:
    assert PacingSettings(mode=PacingMode(mode), interval=interval).effective_interval == effective


@pytest.mark.parametrize(
    ("epoch", "revision", "interval", "verdict"),
    [
        (2, 6, 8, Verdict.APPLY),
        (3, 0, 8, Verdict.APPLY),
        (2, 5, 4, Verdict.SAME),
        (2, 5, 8, Verdict.CONFLICT),
        (2, 4, 4, Verdict.STALE),
        (1, 99, 8, Verdict.STALE),
    ],
)
def test_fence(epoch: int, revision: int, interval: int, verdict: Verdict) -> None:
    running = LiveSettings(epoch=2, revision=5, pacing=PacingSettings(mode=PacingMode.FIXED, interval=4))
    incoming = LiveSettings(
        epoch=epoch, revision=revision, pacing=PacingSettings(mode=PacingMode.FIXED, interval=interval)
    )
    assert judge(running, incoming) is verdict


@pytest.mark.parametrize("fence", [2**53, 2**64, 10**4_000])
@pytest.mark.parametrize("field", ["epoch", "revision"])
def test_a_fence_that_messages_can_not_carry_is_refused(field: str, fence: int) -> None:
    with pytest.raises(ValidationError, match="less than or equal to 9007199254740991"):
        LiveSettings.model_validate({field: fence})
    assert LiveSettings.model_validate({field: 2**53 - 1}).fence


def test_settings_import_neither_torch_nor_vllm() -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'vllm', 'numpy', 'fastapi'}:\n"
        "            raise ImportError(f'{name} is not there')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import paceline.engine_ext.settings\n"
        "assert not {'torch', 'vllm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
