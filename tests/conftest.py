"""What all tests share: in CI a skipped test is a failure, and property tests try the same examples each time."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

FORBID_SKIPS = os.environ.get("PACELINE_FORBID_SKIPS") == "1"

# New examples are looked for wherever somebody works; in CI one would fail a change that it has nothing to do with, as
# would a slow machine.
settings.register_profile("fixed-examples", derandomize=True, deadline=None)
if FORBID_SKIPS:
    settings.load_profile("fixed-examples")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure that carries the skip's reason."""
    report = yield
    if FORBID_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and skipping is forbidden: {call.excinfo and call.excinfo.value}"
    return report
