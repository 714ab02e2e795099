"""For the whole suite: which cases of large sweeps run, what may skip, and a tiny model.

Where `CI` is set in the environment, everything ought to be installed, and a test that skips has
failed. What no installation can change may still skip: its reason begins with "this processor" or
"this backend".
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Generator
from inspect import iscoroutinefunction
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sweeps
from hypothesis import HealthCheck, settings

from quire.backends.cpu.library import TIERS, runnable_tiers
from quire.errors import BackendError
from quire.models.transformers.installation import leave_out_torchvision

_UNCHANGEABLE = ("Skipped: this processor", "Skipped: this backend")


def _fail_instead(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.startswith(_UNCHANGEABLE):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {reason}"


def pytest_configure() -> None:
    """Tests press Ctrl+C, which a shell lets its background jobs ignore. They keep no K/V in the
    user's files. Products of NumPy and torch are too small for several threads, which would wait
    for each other where other tests run."""
    # A machine that is busy makes no test fail.
    unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("quire", unhurried)
    settings.load_profile("quire")
    os.environ["QUIRE_KV_STORE"] = "off"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    leave_out_torchvision()  # many tests import transformers
    sweeps.seed()  # workers of this run inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer of bytes; id 256 is the end token."""
    from tiny_checkpoint import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in a loop of its own, or by `run_test` of its module."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    getattr(pyfuncitem.module, "run_test", asyncio.run)(pyfuncitem.obj(**wanted))
    return True


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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made here stays, so that the garbage collector need not look at it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    seed = sweeps.seed()
    if seed is None:
        return "sweeps: every case"
    return f"sweeps: a sample; {sweeps.SEED}={seed} repeats it, {sweeps.SAMPLE}=all runs every case"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(pytest_report_header())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the cases of sweeps that are not in the sample of this run."""
    seed = sweeps.seed()
    if seed is None or any("[" in argument for argument in config.args):
        return  # a case that is named runs
    families: dict[str, list[Any]] = {}
    for item in items:
        if hasattr(item, "callspec") and "long" not in item.keywords:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, cases in families.items():
        mark = cases[0].get_closest_marker("sweep")
        if mark is not None or len(cases) > sweeps.SMALL:
            left_out.update(_not_sampled(cases, f"{seed} {name}", mark.args[0] if mark else None))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _not_sampled(cases: list[Any], name: str, most: int | None) -> list[pytest.Item]:
    """Cases of one test function that do not run. Those that would skip cover nothing."""
    here = [case for case in cases if _runs_here(case.callspec.params)]
    values = [frozenset((name, id(value)) for name, value in case.callspec.params.items())
              for case in here]  # fmt: skip
    setups = [_setup(case.callspec) for case in here]
    module = name.partition("::")[0] if any(setups) else name
    ranks = {setup: Random(f"{module} {setup}").random() for setup in set(setups)}
    places = sweeps.sample(values, Random(module), most, [ranks[setup] for setup in setups])
    chosen = {here[place] for place in places}
    return [case for case in cases if case not in chosen]


def _setup(callspec: Any) -> tuple[tuple[str, int], ...]:
    """The values of fixtures that other tests use too, by their numbers."""
    scopes, numbers = callspec._arg2scope, callspec.indices.items()
    return tuple((name, at) for name, at in numbers if scopes[name].value != "function")


def _runs_here(params: dict[str, Any]) -> bool:
    """False for a tier that this processor cannot run."""
    tiers = {value for value in params.values() if isinstance(value, str) and value in TIERS}
    try:
        return not tiers or tiers <= set(runnable_tiers())
    except BackendError:  # the test says that there is no native library
        return True
