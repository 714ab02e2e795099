"""The backends that every model test runs on, and the helpers of this folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.backends.base import Backend
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError

HERE = Path(__file__).parent

with warnings.catch_warnings():  # what other libraries warn of as they are imported is theirs
    warnings.simplefilter("ignore")
    import torch
    import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

from model_cases import Case, write_checkpoint  # noqa: E402  (it imports these libraries)
from model_harness import Runner, load  # noqa: E402


def _cpu_backend() -> Backend:
    try:
        from quire.backends.cpu import CpuBackend

        return CpuBackend()
    except (ImportError, BackendError) as error:
        pytest.skip(f"the native library is not built here: {error}")


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each way to compute in turn."""
    return ReferenceBackend() if request.param == "reference" else _cpu_backend()


@pytest.fixture(scope="module")
def cpu_backend() -> Backend:
    """The native one alone."""
    return _cpu_backend()


@pytest.fixture(scope="module")
def checkpoint(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the module's `case`."""
    return write_checkpoint(case, tmp_path_factory.mktemp("model"))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory of the test's own: what files are unpacked to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def runner(checkpoint: Path, backend: Backend) -> Iterator[Runner]:
    """The case, computed by each backend."""
    model = load(checkpoint, backend)
    yield Runner(model)
    model.close()
