"""For the whole suite: which cases of large sweeps run, and what may skip.

Where `CI` is set in the environment, everything ought to be installed, and a test that skips has
failed. What no installation can change may still skip: its reason begins with "this processor".
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from random import Random
from typing import Any

import pytest
import sweeps

from quire.backends.cpu.library import TIERS, runnable_tiers
from quire.errors import BackendError

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
    sweeps.seed()  # workers of this run inherit it
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


def pytest_report_header() -> str:
    seed = sweeps.seed()
    if seed is None:
        return "sweeps: every case"
    return f"sweeps: a sample; {sweeps.SEED}={seed} repeats it, {sweeps.SAMPLE}=all runs every case"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(pytest_report_header())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the cases of sweeps that are not in the sample of this run."""
    seed = sweeps.seed()
    if seed is None or any("[" in argument for argument in config.args):
        return  # a case that is named runs
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if getattr(item, "callspec", None) is not None and item.get_closest_marker("long") is None:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, cases in families.items():
        left_out |= set(_not_sampled(cases, Random(f"{seed} {name}")))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _not_sampled(cases: list[pytest.Item], random: Random) -> list[pytest.Item]:
    """Cases of one test function that do not run. Those that would skip cover nothing."""
    here = [case for case in cases if _runs_here(case)]
    values = [
        frozenset((name, id(value)) for name, value in case.callspec.params.items())  # type: ignore[attr-defined]
        for case in here
    ]
    mark = cases[0].get_closest_marker("sweep")
    most = mark.args[0] if mark else None
    chosen = {here[place].nodeid for place in sweeps.sample(values, random, most)}
    return [case for case in cases if case.nodeid not in chosen]


def _runs_here(case: pytest.Item) -> bool:
    """False for a tier that this processor cannot run."""
    values: dict[str, Any] = case.callspec.params  # type: ignore[attr-defined]
    tiers = {value for value in values.values() if isinstance(value, str) and value in TIERS}
    try:
        return tiers <= set(runnable_tiers())
    except BackendError:  # the test says that there is no native library
        return True
