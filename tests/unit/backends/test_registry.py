"""Choosing a backend: by name, by environment, and falling back with a word."""

from __future__ import annotations

import faulthandler
import sys

import pytest

from quire.backends import registry as backends
from quire.backends.cpu import library
from quire.backends.registry import choose_device, make_backend
from quire.config.records import DeviceConfig
from quire.errors import BackendError, ConfigError


@pytest.fixture(autouse=True)
def _nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_BACKEND", raising=False)
    monkeypatch.delenv("QUIRE_THREADS", raising=False)


def test_reference_by_name_and_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("reference", None).backend == "reference"
    monkeypatch.setenv("QUIRE_BACKEND", "reference")
    assert choose_device("auto", None) == DeviceConfig("reference", None, 1)
    assert make_backend(choose_device("auto", None)).capabilities.name == "reference"


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend='tpu'"):
        choose_device("tpu", None)
    for count in (0, -1, True):
        with pytest.raises(ConfigError, match="num_threads"):
            choose_device("auto", count)


def _no_library(_isa: str | None = None) -> object:
    raise BackendError("the native library was not built")


def test_without_the_library_numpy_takes_over_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("quire.backends.cpu.load", _no_library)
    # Which handlers a record passes depends on who configured logging first; the call does not.
    monkeypatch.setattr(backends.logger, "warning", lambda text, *a: warnings.append(text % a))
    assert choose_device("auto", None).backend == "reference"
    assert len(warnings) == 1
    assert "was not built" in warnings[0]
    with pytest.raises(BackendError, match="was not built"):
        choose_device("cpu", None)


def test_threads_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        isa = "generic"

    monkeypatch.setattr("quire.backends.cpu.load", lambda _isa=None: Library)
    assert choose_device("auto", 3) == DeviceConfig("cpu", "generic", 3)
    monkeypatch.setenv("QUIRE_THREADS", "5")
    assert choose_device("cpu", None).num_threads == 5
    assert backends.choose_device("auto", 1).num_threads == 1


def test_without_the_library_a_page_fault_leaves_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference backend maps files too; where nothing survives a missing page, the process
    says so before it ends."""
    enabled: list[object] = []
    monkeypatch.setattr(library, "guard_mappings", _no_library)
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)
    monkeypatch.setattr(faulthandler, "enable", enabled.append)
    make_backend(DeviceConfig("reference", None, 1))
    assert enabled == [sys.__stderr__]
