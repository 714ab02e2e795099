"""The version is written in two places, and they agree; the change log has a part for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.version import __version__

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "form"),
    [("pyproject.toml", r'^version = "(.+)"$'), ("CHANGELOG.md", r"^## \[(\d.+?)\]")],
)
def test_version(file: str, form: str) -> None:
    found = re.search(form, (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == __version__
