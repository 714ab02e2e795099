"""Agents that others wrote do a task of two tool calls with the demo model.

Each agent is a program in `agents/` and runs in a process of its own. It has two tools, asks one
question, and prints what it called and what it answered as JSON. The second call needs the result
of the first. QUIRE_AGENTS_PYTHON names an interpreter with these packages, which pin versions
that would not fit beside each other in the tests' own environment: openai-agents,
pydantic-ai-slim[openai,anthropic], instructor, litellm, langchain-openai, langgraph, llm,
anthropic.
QUIRE_PI is the command of `pi`, a coding agent from npm; without it that agent is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quire

from .running_server import RunningServer

pytestmark = pytest.mark.long

PROGRAMS = Path(__file__).parent / "agents"
QUESTION = "What is the weather in the city where {person} lives?"
HOMES = {"Anna": "Oslo", "Ben": "Lima", "Maria": "Rome", "Tom": "Cairo"}
"""Names that the demo model was trained with; it may misspell others."""
WEATHER = "sunny"
AGENTS = sorted(path.stem for path in PROGRAMS.glob("with_*.py"))
_WITHOUT_PI = pytest.mark.skipif("QUIRE_PI" not in os.environ, reason="QUIRE_PI is not set")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = Path(quire.__file__).parent / "demo_model"
    greedy = '{"temperature": 0}'
    options = {"model": model, "served_model_name": "demo", "override_generation_config": greedy}
    running = RunningServer(options, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def environment(server: RunningServer, person: str) -> dict[str, str]:
    return {
        **os.environ,
        "BASE_URL": f"{server.url}/v1",
        "QUESTION": QUESTION.format(person=person),
        "HOMES": json.dumps(HOMES),
        "WEATHER": WEATHER,
        "OPENAI_API_KEY": "unused",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def answered(server: RunningServer, program: str, person: str = "") -> dict[str, Any]:
    """What a program reports."""
    python = os.environ.get("QUIRE_AGENTS_PYTHON", sys.executable)
    done = subprocess.run(
        [python, str(PROGRAMS / f"{program}.py")], env=environment(server, person),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("person", HOMES)
@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=_WITHOUT_PI if name == "with_pi" else ()) for name in AGENTS],
)
def test_two_calls_and_an_answer(server: RunningServer, program: str, person: str) -> None:
    found = answered(server, program, person)
    assert found["calls"] == [["find_home", person], ["get_weather", HOMES[person]]]
    assert WEATHER in found["answer"]


@_WITHOUT_PI
def test_a_coding_agent_with_its_own_tools(server: RunningServer) -> None:
    found = answered(server, "pi_with_its_own_tools")
    assert found["calls"] == [["read", "lamp"], ["read", "garden"]]
    assert "soft" in found["answer"]
    assert "green" in found["answer"]
