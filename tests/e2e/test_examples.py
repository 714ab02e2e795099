"""The examples run as they are, and print what they promise."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
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
    "hand_off.py": "of them handed over",
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


@pytest.mark.long
@pytest.mark.parametrize("name", OFFLINE)
def test_an_example_in_one_process(name: str) -> None:
    assert OFFLINE[name] in run(name)


@pytest.mark.long
def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells run one after the other in a running event loop, as a kernel runs them."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, object] = {}

    async def run_cells() -> None:
        for source in sources:
            code = compile(source, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result

    asyncio.run(run_cells())
    texts = [output.outputs[0].text for output in names["outputs"]]  # type: ignore[attr-defined]
    assert texts == [f"{n} + 10 = {n + 10}" for n in range(4)]
    assert capsys.readouterr().out.rstrip("\r").endswith("17 + 25 = 42")


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
