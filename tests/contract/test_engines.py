"""What differs between the engines that Paceline knows: what is off says why, and nothing else changes."""

import inspect
from argparse import Namespace

import pytest
from engines import EVERYTHING, SUPPORT
from fastapi import FastAPI
from harness import Driver, Options, fixed
from vllm.entrypoints import serve
from vllm.v1.core.sched.interface import PauseState

from paceline.engine_ext import compat
from paceline.engine_ext.admin import registration
from paceline.engine_ext.admin.endpoint import AdminEndpoint
from paceline.engine_ext.pacing.hold import Hold, held
from paceline.engine_ext.pacing.reasons import own_cadence
from paceline.engine_ext.page_gate import patches as page_gate
from paceline.engine_ext.page_gate.gate import GATE

LACKING = sorted(EVERYTHING.features - SUPPORT.features)


@pytest.mark.parametrize("feature", sorted(SUPPORT.features))
def test_every_feature_that_is_promised_finds_its_hooks(feature: str) -> None:
    assert compat.problems(feature) == ()


def test_what_this_engine_lacks_is_off_with_its_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    for feature in LACKING:
        assert compat.problems(feature)
    if "coalescing" in LACKING:
        driver = Driver(pacing=fixed(4))
        report = driver.scheduler.coalescing_report()
        assert report == {"active": False, "obstacles": list(compat.problems("coalescing"))}
        assert not driver.scheduler.incompatible
        assert driver.scheduler.paced
    if "page_gate" in LACKING:
        monkeypatch.setenv("PACELINE_PAGE_GATE", "Auto")
        page_gate.install()
        assert GATE.unavailable == "; ".join(compat.problems("page_gate"))


def test_admin_port_is_opened_by_registration_only_where_no_endpoint_plugin_opens_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registration.install()
    app = FastAPI()
    app.state.args = Namespace()
    untouched = app.router.lifespan_context
    if "registration" not in SUPPORT.features:
        from vllm.plugins import load_endpoint_plugins  # not there on engines before 0.26

        monkeypatch.setenv("VLLM_PLUGINS", "paceline")
        assert [type(plugin) for plugin in load_endpoint_plugins(("generate",))] == [AdminEndpoint]
        assert inspect.unwrap(serve.register_vllm_serve_api_routers) is serve.register_vllm_serve_api_routers
        return
    serve.register_vllm_serve_api_routers(app)
    assert app.router.lifespan_context is not untouched


def test_engine_that_holds_prefills_itself_is_not_paced() -> None:
    # vLLM 0.33 keeps such a cadence on any engine, older ones on data-parallel engines only.
    scheduler = Driver().scheduler
    assert own_cadence(scheduler) == []
    scheduler.local_prefill_interval = 4
    reasons = own_cadence(scheduler)
    assert len(reasons) == 1
    assert "prefill_schedule_interval at 1" in reasons[0]


def test_request_whose_grammar_is_ready_at_last_is_held_like_any_other() -> None:
    # vLLM 0.22.1 moves blocked requests to a queue of their own, and serves that one first.
    driver = Driver(pacing=fixed(8))
    driver.add("resident", 10)
    driver.step(2)
    driver.add("first", 20)
    driver.add("structured", 300, grammar=True)
    driver.step(2)
    assert driver.chunk_steps("first") == [3]
    driver.compile_grammar("structured")
    driver.step(20)
    assert driver.chunk_steps("structured")[:2] == [11, 19]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_hold_leaves_the_scheduler_as_it_was(asynchronous: bool) -> None:
    driver = Driver(Options(max_seqs=3, asynchronous=asynchronous), fixed(8))
    driver.add("resident", 10)
    driver.step(3)
    for name in ("first", "second", "third"):
        driver.add(name, 200)
    for _ in range(20):
        driver.step()
        assert driver.scheduler.max_num_running_reqs == 3
        assert driver.scheduler.max_num_active_reqs == 3
        assert driver.scheduler._pause_state is PauseState.UNPAUSED
    assert len(driver.scheduler.running) == 3


def test_hold_that_lets_the_first_in_lets_nobody_else_in() -> None:
    driver = Driver()
    driver.add("resident", 10)
    driver.step(2)
    for name in ("first", "second"):
        driver.add(name, 10)
    with held(driver.scheduler, Hold((), waiting=2, admit_first=True)):
        output = driver.scheduler.schedule()
    assert [request.req_id for request in output.scheduled_new_reqs] == ["first"]
