"""Makes the helpers of this folder and of tests/fakes importable; the backends to run on."""

from __future__ import annotations

import pytest

from quire.errors import BackendError


@pytest.fixture(scope="session", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each way to compute; the native one where it is built."""
    name: str = request.param
    if name == "cpu":
        from quire.backends.cpu import load

        try:
            load()
        except BackendError as error:
            pytest.skip(f"the native library is not built here: {error}")
    return name
