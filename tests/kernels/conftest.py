"""Every kernel test runs on each instruction-set tier that this machine can run."""

from __future__ import annotations

import pytest

from quire.backends.cpu import CpuBackend, load
from quire.backends.cpu.library import TIERS, runnable_tiers
from quire.errors import BackendError


@pytest.fixture(scope="session", params=TIERS)
def isa(request: pytest.FixtureRequest) -> str:
    """A tier; skipped where it was not built, or where the processor cannot run it."""
    tier: str = request.param
    try:
        if tier not in runnable_tiers():
            pytest.skip(f"this processor cannot run {tier}")
        return load(tier).isa
    except BackendError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def backend(isa: str) -> CpuBackend:
    """Two threads, so that every op is shared out."""
    return CpuBackend(2, isa)
