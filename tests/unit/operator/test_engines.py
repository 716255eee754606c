"""What the operator understands of an engine's answers."""

from typing import Any

import pytest

from paceline.engine_ext.settings import CoalescingSettings, FinalChunk, LiveSettings
from paceline.operator.engines import EngineAddress, EngineReport, read_report
from paceline.operator.pods import PodView

WANTED = LiveSettings(epoch=2, revision=5)


def answer(**changes: Any) -> dict[str, Any]:
    core = {"engine": 0, "epoch": 2, "revision": 5, "step": 9, "paced": True, "reasons": []}
    settings = WANTED.model_dump(by_alias=True, exclude_none=True, mode="json")
    return {"settings": settings, "engines": [core], "compatible": True, "reasons": [], **changes}


def test_an_engine_that_took_the_settings() -> None:
    assert read_report(200, answer()) == EngineReport(settings=WANTED)
    assert read_report(200, answer()).runs(WANTED)
    assert read_report(200, answer()).fence == (2, 5)


def test_a_core_that_is_behind_is_named() -> None:
    core = {"engine": 1, "epoch": 2, "revision": 4}
    report = read_report(200, answer(engines=[*answer()["engines"], core]))
    assert report.behind == ("engine core 1 at revision 4",)
    assert not report.runs(WANTED)


@pytest.mark.parametrize(
    ("gates", "told"),
    [
        ([], ""),
        ([{"mode": "Disabled", "message": None}], ""),
        ([{"mode": "Auto"}], ""),
        ([{"message": "Auto: off, no kernels"}, {"message": "Auto: off, no kernels"}], "Auto: off, no kernels"),
        ([{"message": "a"}, {"message": "b"}], "a; b"),
    ],
    ids=["no gate", "disabled", "an older engine", "cores alike", "cores that differ"],
)
def test_what_the_page_gate_does_is_told_once(gates: list[dict[str, Any]], told: str) -> None:
    assert read_report(200, answer(pageGate=gates)).page_gate == told


@pytest.mark.parametrize(
    ("final_chunk", "told"), [(FinalChunk.ENABLED, "blocks of 784 tokens; it speculates"), (FinalChunk.DISABLED, "")]
)
def test_why_nothing_is_coalesced_is_told_once_where_it_is_wanted(final_chunk: FinalChunk, told: str) -> None:
    wanted = WANTED.model_copy(update={"coalescing": CoalescingSettings(final_chunk=final_chunk)})
    cores = [
        {"active": False, "obstacles": ["blocks of 784 tokens"]},
        {"active": False, "obstacles": ["blocks of 784 tokens", "it speculates"]},
    ]
    settings = wanted.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert read_report(200, answer(settings=settings, coalescing=cores)).uncoalesced == told


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"title": "Unauthorized"}, "refused the admin token"),
        (422, {"detail": "budget too small; use 4096"}, "can't run these settings: budget too small; use 4096"),
        (503, {"title": "Unavailable", "detail": "engine core 1 did not answer"}, "503: engine core 1 did not answer"),
        (502, "<html>bad gateway</html>", "502: <html>bad gateway</html>"),
        (200, "hello", "answered 200: hello"),
        (200, {"settings": {}}, "none of ours"),
        (200, answer(settings={"epoch": "x"}), "none of ours"),
    ],
)
def test_an_answer_that_is_none_says_why(status: int, body: Any, words: str) -> None:
    report = read_report(status, body)
    assert words in report.error
    assert report.settings is None
    assert report.fence == (0, 0)
    assert report.refused == (status == 422)


@pytest.mark.parametrize(
    ("host", "ip", "url"),
    [
        (None, "10.0.0.7", "http://10.0.0.7:9000/paceline/v1/settings"),
        (None, "fd00::7", "http://[fd00::7]:9000/paceline/v1/settings"),
        ("127.0.0.1", "10.0.0.7", "http://127.0.0.1:9000/paceline/v1/settings"),
    ],
)
def test_where_the_admin_port_is(host: str | None, ip: str, url: str) -> None:
    pod = PodView(name="web", uid="1", template="", role="", created="", ip=ip)
    assert EngineAddress(9000, host).url(pod) == url
