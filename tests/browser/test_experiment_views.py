"""The experiments: live progress, and the result with its chart."""

from api_support.apis import Api
from api_support.plans import follow_until, long_plan, plan, until_end
from browser_visit import Visit
from playwright.sync_api import expect


def submit(api: Api, document: dict) -> str:
    return api.client.post("/v1/experiments", json=document).json()["id"]


def test_a_running_experiment_is_followed_to_its_result_without_a_reload(visit: Visit, api: Api) -> None:
    experiment = submit(api, plan(name="Unpaced against N=4", blocks=2, controlArm=True))
    page = visit.open("#/experiments")
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("link", name="Unpaced against N=4").click()
    expect(page.get_by_role("heading", name="Unpaced against N=4")).to_be_visible()
    page.evaluate("window.same = true")
    expect(page.locator("main .pill").filter(has_text="Succeeded")).to_be_visible()
    assert page.evaluate("window.same") is True

    found = api.client.get(f"/v1/experiments/{experiment}").json()
    results = page.get_by_role("table", name="Medians over 2 blocks")
    for arm in found["result"]["arms"]:
        row = results.get_by_role("row").filter(has=page.get_by_role("rowheader", name=arm["arm"], exact=False)).first
        during = arm["metrics"]["residentTokensPerSecondDuring"]["value"]
        expect(row).to_contain_text(f"{during:,.1f}"[:-1])
    expect(page.get_by_role("table", name="Against the baseline")).to_contain_text("×")
    expect(page.get_by_role("heading", name="Audits")).to_be_visible()
    shown = page.locator(".audits li").count()
    assert shown == len(found["result"]["audits"])


def test_the_chart_has_a_line_and_a_prefill_for_each_arm(visit: Visit, api: Api) -> None:
    experiment = submit(api, plan(controlArm=True))
    found = until_end(api.client, experiment)
    page = visit.open(f"#/experiments/{experiment}")
    chart = page.get_by_role("img", name="Resident tokens per second over time")
    expect(chart).to_be_visible()
    assert chart.locator("path.line").count() == 3
    bars = chart.locator("rect.prefill")
    assert bars.count() == 3
    widths = [bars.nth(place).bounding_box()["width"] for place in range(3)]
    prefills = [
        next(
            block["firstTokenSeconds"] - block["injectedSeconds"]
            for block in found["blocks"]
            if block["arm"] == arm["name"]
        )
        for arm in found["arms"]
    ]
    # All start at the arrival and have one scale, so widths are as the times.
    scale = widths[0] / prefills[0]
    for width, seconds in zip(widths, prefills, strict=True):
        assert abs(width - scale * seconds) < 2
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    expect(page.locator(".readout")).to_contain_text("tok/s")


def test_a_running_experiment_is_stopped_by_its_button(visit: Visit, api: Api) -> None:
    experiment = submit(api, long_plan())
    follow_until(api.client, experiment, lambda summary: summary["progress"] is not None)
    page = visit.open(f"#/experiments/{experiment}")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("main .pill").filter(has_text="Cancelled")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)


def test_a_name_is_text_and_never_markup(visit: Visit, api: Api) -> None:
    name = "<img src=x onerror=\"document.title='caught'\"><b>bold</b>"
    experiment = submit(api, plan(name=name))
    until_end(api.client, experiment)
    page = visit.open("#/experiments")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    page.goto(f"{visit.url}/#/experiments/{experiment}")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert page.locator("main img, main b").count() == 0


def test_an_experiment_that_is_not_there_is_told(visit: Visit) -> None:
    page = visit.open("#/experiments/none")
    expect(page.get_by_role("alert")).to_contain_text("the experiment none does not exist")
