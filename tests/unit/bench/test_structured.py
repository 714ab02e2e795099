"""The benchmark of structured output runs on the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structured

import quire


def test_without_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = Path(quire.__file__).parent / "demo_model"
    found = tmp_path / "found.json"
    arguments = [
        "--model", str(model), "--rounds", "1", "--streams", "2", "--output-len", "8",
        "--option", '{"num_threads": 1}', "--json", str(found), "--timeout", "120",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["structured.py", *arguments])
    assert structured.main() == 0
    works = ["begin", "first-none", "first-small", "first-large", "streams-2"]
    header, line = capsys.readouterr().out.splitlines()[-2:]
    assert header.split() == works
    assert line.split()[0] == "quire"
    values = json.loads(found.read_text())["peers"]["quire"]["values"]
    assert list(values) == works
    assert all(value[0] > 0 for value in values.values())


def test_the_table_says_how_much_better_quire_is() -> None:
    peers = {
        "quire": {"values": {"first-small": [0.1, 0.2, 0.3], "streams-1": [30.0]}},
        "vllm-xgrammar": {"values": {"first-small": [0.5], "streams-1": [20.0]}},
    }
    text = structured.table({"peers": peers}).splitlines()
    assert "0.200 (1.00x)" in text[1]
    assert "0.500 (2.50x)" in text[2]
    assert "20.000 (1.50x)" in text[2]
