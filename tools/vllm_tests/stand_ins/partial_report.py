"""A pytest plug-in: a report that is there even if the tests are ended before their time.

Lines of JSON: a test's name, what came of it, and the message. The last line of a test counts.
"""

from __future__ import annotations

import json
import os

import pytest

_RANK = {"unfinished": -1, "passed": 0, "skipped": 1, "failed": 2}
_MAX_CHARS = 400
_found: dict[str, tuple[str, str]] = {}


def _note(name: str, outcome: str, message: str) -> None:
    before = _found.get(name, ("passed", ""))
    if name not in _found or _RANK[outcome] > _RANK[before[0]]:
        _found[name] = (outcome, message)
        with open(os.environ["REPORT"], "a") as file:
            file.write(json.dumps([name, outcome, message]) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Every test counts, also those that the process does not come to."""
    for item in session.items:
        _note(item.nodeid, "unfinished", "did not end in time")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """After the set-up, the call and the end of each test."""
    if report.when == "call" or report.outcome != "passed":
        _note(report.nodeid, report.outcome, _message(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """After a file was read."""
    if report.outcome != "passed":
        _note(report.nodeid, report.outcome, _message(report))


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])[:_MAX_CHARS]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    lines = [line for line in text.splitlines() if line.startswith("E ")] if crash is None else []
    return ("\n".join(lines) or text)[-_MAX_CHARS:] if crash is None else text[:_MAX_CHARS]
