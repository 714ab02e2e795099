"""The benchmark of fields runs on the bundled model."""

from __future__ import annotations

import fields
import pytest


def test_fields(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fields, "_STEPS", 10)
    monkeypatch.setattr("sys.argv", ["fields.py", "--requests", "2", "--rounds", "1"])
    assert fields.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["fields", "none"]
    assert len(lines) == 1 + len(fields.kinds(100))
