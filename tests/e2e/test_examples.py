"""The examples run as they are, and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running_server import RunningServer

EXAMPLES = Path(__file__).parents[2] / "examples"
OFFLINE = {
    "first_script.py": "Generated text", "batch.py": "What is 7 + 10?", "stream.py": " ",
    "structured.py": "'age':", "embeddings_rag.py": "answer:", "custom_sampler.py": "[",
    "prefix_cache.py": "of them cached", "several_samples.py": "'", "kept_prefixes.py": "kept",
}  # fmt: skip
ONLINE = {"tools.py": "->", "two_models.py": "demo:", "async_server.py": "What is 7 + 7?"}


def run(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        capture_output=True, text=True, timeout=280, env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OFFLINE, *ONLINE}
    assert len({*OFFLINE, *ONLINE}) == 12


@pytest.mark.long
@pytest.mark.parametrize("name", OFFLINE)
def test_an_example_in_one_process(name: str) -> None:
    assert OFFLINE[name] in run(name)


@pytest.mark.long
def test_the_examples_with_a_server() -> None:
    server = RunningServer({}, {"port": 0})
    try:
        server.wait_until_serving()
        for name, text in ONLINE.items():
            assert text in run(name, server.url), name
    finally:
        server.process.terminate()
        server.process.wait(60)
