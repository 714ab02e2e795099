"""Coding agents with their own prompts of 10,000 and more tokens and their own tools do a task.

QUIRE_CODING_AGENTS names the folders of their programs, as PATH does; an agent that is not there is
left out. The agents' packages are listed in `coding_agents.py`. The small model is made to
do what the task says, so that a test shows what the agent and the server say to each other: tools,
grammars of their schemas, streams, results.

On a slow machine an agent takes longer than pytest's bound for one test: give
`-o faulthandler_timeout=0` too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire

from .coding_agents import AGENTS, FILE, SECRET
from .running_server import RunningServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(1000)]

MODEL = Path(quire.__file__).parent / "demo_model"
FAKES = Path(__file__).parents[1] / "fakes"
FOLDERS = os.environ.get("QUIRE_CODING_AGENTS", "")
_MOST_S = 900
"""A prompt of 40,000 tokens takes minutes on a slow machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    running = RunningServer(
        {
            "model": MODEL, "served_model_name": "demo", "max_model_len": 131_072,
            "hf_overrides": '{"max_position_embeddings": 131072}',
            "logits_processors": "obedient_model:Obedient",
        },
        {"port": 0},
        {"PYTHONPATH": os.pathsep.join([str(FAKES), str(MODEL.parents[1])]),
         "QUIRE_OBEDIENT_TOKENIZER": str(MODEL / "tokenizer.json")},
    )  # fmt: skip
    yield running.wait_until_serving()
    running.stop()


@pytest.mark.parametrize("name", AGENTS)
def test_a_task_with_the_agents_own_tools(server: RunningServer, name: str, tmp_path: Path) -> None:
    program = shutil.which(name, path=FOLDERS)
    if program is None:
        pytest.skip(f"QUIRE_CODING_AGENTS names no folder with {name}")
    home = tmp_path / "home"
    home.mkdir()
    file = tmp_path / FILE
    file.write_text("empty" if name == "aider" else SECRET)
    start = AGENTS[name](server.url, tmp_path)
    for path, text in start.files.items():
        (tmp_path / path).write_text(text)
    env = {"PATH": os.pathsep.join([FOLDERS, os.environ["PATH"]]), "HOME": str(home), **start.env}
    done = subprocess.run(
        [program, *start.arguments], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_MOST_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = file.read_text() if name == "aider" else done.stdout
    assert SECRET in said, done.stdout + done.stderr
