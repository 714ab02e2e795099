"""`quire collect-env`: facts by topic, and no secrets."""

from __future__ import annotations

import json
import platform

import pytest

from quire.cli import main
from quire.version import __version__


def test_facts_by_topic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "very-secret")
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert main(["collect-env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    topics = ["system", "processor", "memory", "quire", "GPU", "libraries", "environment"]
    assert list(facts) == topics
    assert {"driver", "cuda-core", "triton", "kernels"} <= set(facts["GPU"])
    assert facts["system"]["Python"].startswith(platform.python_version())
    assert "for this process" in facts["processor"]["logical cores"]
    assert facts["processor"]["tier"] != ""
    assert "available here" in facts["memory"]
    assert facts["quire"]["version"] == __version__
    assert facts["libraries"]["numpy"] != "not installed"
    assert facts["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert facts["environment"]["VLLM_API_KEY"] == "(set, not shown)"
    assert facts["environment"]["HF_TOKEN"] == "(set, not shown)"


def test_as_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "very-secret")
    monkeypatch.setenv("QUIRE_THREADS", "none")
    assert main(["collect-env"]) == 0
    text = capsys.readouterr().out
    assert "libraries\n  numpy" in text
    assert "very-secret" not in text
