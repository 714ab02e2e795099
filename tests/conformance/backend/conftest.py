"""The backends, and the helpers in tests/fakes."""

from __future__ import annotations

import pytest

from quire.backends.base import Backend
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError


@pytest.fixture(scope="module", params=["reference", "cpu", "cuda"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each way to compute in turn; the CUDA backend on its emulated device."""
    if request.param == "reference":
        return ReferenceBackend()
    if request.param == "cuda":
        return CudaBackend(EmulatedDevice())
    try:
        from quire.backends.cpu import CpuBackend

        return CpuBackend()
    except (ImportError, BackendError) as error:
        pytest.skip(f"the native library is not built here: {error}")
