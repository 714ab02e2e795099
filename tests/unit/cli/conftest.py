"""Puts the shared helpers on the path, and gives every test a tiny model directory."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that runs in milliseconds, with a chat template."""
    from tiny_checkpoint import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def _reference_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about commands: what computes is the slow and simple one."""
    monkeypatch.setenv("QUIRE_BACKEND", "reference")
