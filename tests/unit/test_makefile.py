"""The Makefile takes the dependencies out of pyproject.toml, so that they are installed while the
native library is compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_make_demo_installs_the_dependencies_of_the_package(tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    target = "build/dependencies.txt"
    subprocess.run(["make", "--silent", target], cwd=tmp_path, check=True)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    assert (tmp_path / target).read_text("utf-8").split("\n") == [*project["dependencies"], ""]
