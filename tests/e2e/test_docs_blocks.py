"""Python blocks of the documentation that are marked `<!-- run -->` run as they stand.

They use the demo model, and the address of the examples leads to a server of this test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import RunningServer

import quire

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"
_BLOCK = re.compile(r"^<!-- run -->\n```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> Iterator[tuple[str, str]]:
    """The page and line of each marked block, and its code."""
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        text = page.read_text("utf-8")
        for found in _BLOCK.finditer(text):
            assert found[1] == "python", f"{page}: only python blocks can be run"
            yield f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}", found[2]


BLOCKS = dict(blocks())


@pytest.fixture(scope="module")
def demo_server() -> Iterator[RunningServer]:
    running = RunningServer({}, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def test_blocks_are_found() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.sweep(5)
@pytest.mark.parametrize("place", BLOCKS)
def test_a_block_runs(place: str, demo_server: RunningServer, tmp_path: Path) -> None:
    code = BLOCKS[place].replace(ADDRESS, demo_server.url.rstrip("/"))
    source = str(Path(quire.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": source},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
