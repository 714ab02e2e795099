"""For the whole suite: where everything ought to be installed, a test that skips has failed.

`CI` set in the environment says so. What no installation can change may still skip: its reason
begins with "this processor".
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

_UNCHANGEABLE = "Skipped: this processor"


def _fail_instead(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.startswith(_UNCHANGEABLE):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {reason}"


def pytest_configure() -> None:
    """Tests press Ctrl+C, which a shell lets its background jobs ignore. They keep no K/V in the
    user's files."""
    os.environ["QUIRE_KV_STORE"] = "off"
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_instead(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, pytest.CollectReport]:
    report: pytest.CollectReport = yield
    _fail_instead(report)
    return report
