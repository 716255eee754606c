"""What all tests share: a skipped test is a failure where skipping is forbidden, as it is in CI."""

import os
from collections.abc import Generator

import pytest

FORBID_SKIPS = os.environ.get("PACELINE_FORBID_SKIPS") == "1"


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
