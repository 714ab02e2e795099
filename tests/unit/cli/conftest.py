"""Which backend computes in these tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _reference_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about commands: what computes is the slow and simple one."""
    monkeypatch.setenv("QUIRE_BACKEND", "reference")
