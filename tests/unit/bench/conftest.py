"""Puts the shared helpers on the path."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model directory with a tokenizer."""
    from tiny_checkpoint import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
