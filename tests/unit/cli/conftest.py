"""The backend and the models of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import env


@pytest.fixture(autouse=True)
def _reference_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about commands: what computes is the slow and simple one."""
    monkeypatch.setenv("QUIRE_BACKEND", "reference")


@pytest.fixture(autouse=True)
def _no_other_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No models of other programs on this machine."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "no-ollama"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "no-llama.cpp"))
    monkeypatch.setattr(env, "lm_studio_dirs", list)
