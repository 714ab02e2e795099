"""Choosing a backend: by name, by environment, and falling back with a word."""

from __future__ import annotations

import faulthandler
import sys
from importlib.metadata import EntryPoint

import pytest

from quire.backends import registry as backends
from quire.backends.base import Backend
from quire.backends.cpu import library
from quire.backends.reference import ReferenceBackend
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


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:11", 11)])
def test_a_gpu_by_its_name(device: str, index: int) -> None:
    for backend in ("auto", "cuda"):
        found = choose_device(backend, None, device=device)
        assert (found.backend, found.gpu_index) == ("cuda", index)
    assert choose_device("cuda", None).backend == "cuda"
    assert choose_device("reference", None, device="cpu").backend == "reference"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:1234", "cuda: 1", "CUDA", ""])
def test_a_device_that_is_not_known(device: str) -> None:
    with pytest.raises(ConfigError, match="is not known; use auto, cpu, cuda"):
        choose_device("auto", None, device=device)


def test_a_device_and_a_backend_that_contradict_each_other() -> None:
    for backend, device in (("cpu", "cuda"), ("reference", "cuda:1"), ("cuda", "cpu")):
        with pytest.raises(ConfigError, match="contradict each other"):
            choose_device(backend, None, device=device)
    with pytest.raises(ConfigError, match="device='cuda' does not run a model that transformers"):
        choose_device("auto", None, device="cuda", runs_transformers=True)


def test_without_a_gpu_the_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_CUDA_EMULATED", raising=False)
    with pytest.raises(BackendError, match="the GPU 0 cannot be used"):
        make_backend(choose_device("cuda", None))


def test_the_emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    found = make_backend(choose_device("auto", None, device="cuda")).capabilities
    assert found.name == "cuda"
    assert "emulated" in found.description


def test_a_package_brings_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("own", f"{__name__}:_brought_backend", backends.GROUP)

    def entry_points(group: str, name: str = "own") -> list[EntryPoint]:
        return [entry] if (group, name) == (backends.GROUP, "own") else []

    monkeypatch.setattr(backends, "entry_points", entry_points)
    device = choose_device("own", 3)
    assert device == DeviceConfig("own", None, 3)
    assert make_backend(device).capabilities.name == "reference"
    with pytest.raises(ConfigError, match="use one of auto, cpu, cuda, own, reference"):
        choose_device("other", None)


def _brought_backend(device: DeviceConfig) -> Backend:
    assert device.num_threads == 3
    return ReferenceBackend()


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
