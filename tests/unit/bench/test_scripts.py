"""Scripts of `bench/` run, on a tiny model or the bundled one: expectations, growing work,
structured output and fields.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import fields
import growth
import predicted
import pytest
import structured
from tiny_checkpoint import write_tiny_checkpoint

import quire
from quire.config.engine_args import EngineArgs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "model", max_position_embeddings=1024)


def test_both_sides_of_every_cell(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "r.json"
    words = ["--model", str(model), "--formats", "int8", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["predicted.py", *words])
    assert predicted.main() == 0
    [found] = json.loads(file.read_text())
    assert found["format"] == "int8"
    assert list(found["rounds"]) == ["1", "8", "32", "prompt"]
    for pairs in found["rounds"].values():
        assert len(pairs) == 2
        assert all(expected > 0 and measured > 0 for expected, measured in pairs)
    assert capsys.readouterr().out.startswith("int8 ")


def test_the_cache_is_written_everywhere(model: Path) -> None:
    """The prompts of the warm-up need more blocks than the streams leave."""
    args = EngineArgs(str(model), load_format="dummy", block_size=16)
    streams = 32 * 17  # blocks of 16 that 272 tokens take
    prompts = predicted._num_blocks(args) - streams
    assert predicted._PROMPTS * 33 <= prompts < predicted._WARM_UP_PROMPTS * 33


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


def test_fields(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fields, "_STEPS", 10)
    monkeypatch.setattr("sys.argv", ["fields.py", "--requests", "2", "--rounds", "1"])
    assert fields.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["fields", "none"]
    assert len(lines) == 1 + len(fields.kinds(100))
