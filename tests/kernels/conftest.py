"""Every kernel test runs on each instruction-set tier that this machine can run."""

from __future__ import annotations

from pathlib import Path

import pytest

import quire.backends.cpu
from quire.backends.cpu import CpuBackend, load
from quire.backends.cpu.library import TIERS
from quire.errors import BackendError

_BUILT = Path(quire.backends.cpu.__file__).parent / "_native"


@pytest.fixture(scope="session", params=TIERS)
def isa(request: pytest.FixtureRequest) -> str:
    """A tier; skipped where it was not built, or where the processor cannot run it."""
    try:
        return load(request.param).isa
    except BackendError as error:
        if (_BUILT / f"libquire_{request.param}.so").exists():
            pytest.skip(f"this processor cannot run it: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def backend(isa: str) -> CpuBackend:
    """Two threads, so that every op is shared out."""
    return CpuBackend(2, isa)
