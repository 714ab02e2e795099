"""The benchmark of growing work, on a tiny model: sizes, shares, and the chart."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import growth
import pytest


def test_growth(
    model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUIRE_BACKEND", "reference")
    words = ["--model", str(model_dir), "--max-requests", "4", "--max-context", "256"]
    files = ["--json", str(tmp_path / "r.json"), "--svg", str(tmp_path / "r.svg")]
    monkeypatch.setattr("sys.argv", ["growth.py", *words, *files])
    monkeypatch.setattr(growth, "CONTEXTS", (128, 256))
    assert growth.main() == 0
    saved = json.loads((tmp_path / "r.json").read_text())
    assert [point["size"] for point in saved["requests"]] == [1, 2, 4]
    assert [point["size"] for point in saved["contexts"]] == [128, 256]
    for point in saved["requests"] + saved["contexts"]:
        assert 0 < point["backend_ms"] < point["step_ms"]
        assert point["prefill_tokens_per_s"] > 0
    assert "python" in capsys.readouterr().out
    ET.fromstring((tmp_path / "r.svg").read_text())
