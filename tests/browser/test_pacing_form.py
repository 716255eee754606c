"""The token, and the form that changes the pacing of a running engine."""

from pathlib import Path

import pytest
from api_support.apis import Api
from api_support.fake_engine import FakeEngine
from api_support.servers import free_port, serve
from api_support.state import API_TOKEN, point_at_engine
from browser_visit import Visit
from playwright.sync_api import BrowserContext, expect

from paceline.engine_ext.settings import PacingMode

ANSWER_MILLISECONDS = 20_000
"""A PUT waits 5 s for the engines before it answers that they lag."""


def test_the_token_is_asked_for_and_a_wrong_one_refused(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.url)
    field = page.get_by_role("textbox", name="Token")
    expect(field).to_be_focused()
    field.fill("not the one")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not the right one")
    page.get_by_role("textbox", name="Token").fill(f"  {API_TOKEN}\n")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("heading", name="tiny")).to_be_visible()
    page.get_by_role("button", name="Forget token").click()
    expect(page.get_by_role("textbox", name="Token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_link_with_the_token_works_and_leaves_no_trace_of_it(visit: Visit, context: BrowserContext) -> None:
    page = visit.open()
    assert API_TOKEN not in page.url
    assert all(API_TOKEN not in url.split("#")[0] for url in visit.requested)
    assert page.evaluate("localStorage.length") == 0
    assert context.cookies() == []
    page.reload()
    expect(page.get_by_role("heading", name="tiny")).to_be_visible()


def test_an_interval_is_applied_with_the_keyboard_alone(visit: Visit, engine: FakeEngine) -> None:
    page = visit.open()
    off = page.get_by_role("radio", name="Off")
    expect(off).to_be_checked()
    off.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="Interval")).to_be_checked()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Interval N")).to_be_focused()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Applied")).to_contain_text("revision 1")
    assert engine.settings.pacing.mode is PacingMode.FIXED
    assert engine.settings.pacing.interval == 8
    expect(page.get_by_text("one prefill step in 8")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="1 of 1")).to_be_visible()


def test_a_promise_is_applied(visit: Visit, engine: FakeEngine) -> None:
    page = visit.open()
    page.get_by_text("Promise", exact=True).click()
    page.get_by_label("Time per output token").fill("90")
    page.get_by_label("Longest prefill delay").fill("30")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("90 ms per output token")).to_be_visible()
    assert engine.settings.pacing.mode is PacingMode.SLO
    assert engine.settings.pacing.slo is not None
    assert engine.settings.pacing.slo.max_prefill_delay_seconds == 30


@pytest.mark.parametrize("value", ["-1", "1000000000", "4.5", ""])
def test_an_impossible_interval_is_stopped_before_it_is_sent(visit: Visit, engine: FakeEngine, value: str) -> None:
    page = visit.open()
    page.get_by_text("Interval", exact=True).click()
    field = page.get_by_label("Interval N")
    field.fill(value)
    page.get_by_role("button", name="Apply").click()
    assert field.evaluate("element => element.validity.valid") is False
    expect(field).to_be_focused()
    assert engine.pushes == []


def test_a_refusal_is_shown_with_its_reason(visit: Visit, engine: FakeEngine) -> None:
    engine.refuse = "a step of 64 tokens can't hold one state block"
    page = visit.open()
    page.get_by_text("Interval", exact=True).click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("status").filter(has_text="state block")).to_contain_text("as they were before")
    # What was typed is still there to be corrected.
    expect(page.get_by_role("radio", name="Interval")).to_be_checked()
    expect(page.get_by_text("off", exact=True)).to_be_visible()


def test_a_pending_change_is_named_and_turns_to_applied_by_itself(visit: Visit, state: Path) -> None:
    port = free_port()
    point_at_engine(state, f"http://127.0.0.1:{port}")
    page = visit.open()
    expect(page.get_by_text("no answer").first).to_be_visible()
    page.get_by_text("Interval", exact=True).click()
    page.get_by_role("button", name="Apply").click()
    pending = page.get_by_role("status").filter(has_text="Pending")
    expect(pending).to_contain_text("does not answer", timeout=ANSWER_MILLISECONDS)
    with serve(FakeEngine().app(), port):
        applied = page.get_by_role("status").filter(has_text="Applied")
        expect(applied).to_contain_text("revision 1", timeout=ANSWER_MILLISECONDS)


def test_a_change_by_somebody_else_is_shown_and_never_overwritten_unseen(visit: Visit, api: Api) -> None:
    page = visit.open()
    page.get_by_text("Interval", exact=True).click()
    page.get_by_label("Interval N").fill("16")
    api.client.put("/v1/profiles/lab/tiny/pacing", json={"mode": "Fixed", "interval": 2})
    expect(page.get_by_text("one prefill step in 2")).to_be_visible()
    # The refresh leaves alone what is being typed.
    expect(page.get_by_label("Interval N")).to_have_value("16")
