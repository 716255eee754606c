"""That the page can be read: in light and dark, on a phone, and under a strict content security policy."""

import pytest
from api_support.apis import Api
from api_support.plans import plan, until_end
from api_support.state import API_TOKEN
from browser_visit import Visit
from playwright.sync_api import Browser

# Text colour, background colour, and the least contrast (WCAG 2.1: 4.5 for text, 3 for the chart's lines).
PAIRS = [
    ("ink", "page", 4.5), ("ink", "card", 4.5), ("muted", "page", 4.5), ("muted", "card", 4.5), ("accent", "card", 4.5),
    ("accent", "page", 4.5), ("accent", "info-back", 4.5), ("accent-ink", "accent", 4.5), ("good", "good-back", 4.5),
    ("warn", "warn-back", 4.5), ("bad", "bad-back", 4.5), ("info", "info-back", 4.5),
    *((f"arm-{number}", "card", 3.0) for number in range(6)),
]  # fmt: skip


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read_on_its_background(browser: Browser, api: Api, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(api.url)
    read = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
    for text, background, least in PAIRS:
        found = contrast(page.evaluate(read, text), page.evaluate(read, background))
        assert found >= least, f"--{text} on --{background} has a contrast of {found:.2f} in {scheme}"
    context.close()


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_view_is_wider_than_the_screen(browser: Browser, api: Api, width: int) -> None:
    experiment = api.client.post("/v1/experiments", json=plan()).json()["id"]
    until_end(api.client, experiment)
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(f"{api.url}/#token={API_TOKEN}")
    for view, landmark in (
        ("#/", "article"),
        ("#/experiments", "tbody tr"),
        (f"#/experiments/{experiment}", "svg.chart"),
    ):
        page.goto(f"{api.url}/{view}")
        page.locator(landmark).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_only_our_own_files_may_run_and_nothing_inline(visit: Visit) -> None:
    page = visit.open()
    policy = page.request.get(visit.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    blocked = page.evaluate(
        "() => new Promise(resolve => {"
        "  document.addEventListener('securitypolicyviolation', event => resolve(event.effectiveDirective));"
        "  const script = document.createElement('script');"
        "  script.textContent = 'window.inline = true';"
        "  document.head.append(script);"
        "})"
    )
    assert blocked == "script-src-elem"
    assert page.evaluate("window.inline") is None
    # The violation was made on purpose.
    visit.errors.clear()
