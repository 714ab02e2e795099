"""The wheel of this tree in a fresh environment without a compiler runs the first script."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEELS = [*(ROOT / "build" / "wheel").glob("quire_engine-*.whl")]


@pytest.mark.skipif(not WHEELS, reason="there is no wheel: make test-env builds one")
@pytest.mark.timeout(600)
def test_a_fresh_environment_needs_no_compiler(tmp_path: Path) -> None:
    place = tmp_path / "fresh"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    environment = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
    environment |= {"PATH": str(place / "bin"), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    for command in (
        [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", WHEELS[0]],
        [python, ROOT / "examples" / "first_script.py"],
        [place / "bin" / "quire", "doctor"],
    ):
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    tiers = "import quire.backends.cpu.library as l; print(l.load().isa)"
    built = subprocess.run(
        [python, "-c", tiers], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    here = subprocess.run([sys.executable, "-c", tiers], capture_output=True, text=True, check=True)
    assert built.stdout.split() == here.stdout.split()
