"""Benchmarks say whether their engines guess: guesses would count as the speed of one stream."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from helpers.peer_child import VllmLike

import quire
from quire.bench import offline
from quire.config.engine_args import EngineArgs
from quire.llm import LLM

BENCH = Path(__file__).parents[3] / "bench"
STARTS = {"LLM", "EngineArgs", "AsyncEngineArgs"}
NAMES = {"speculation", "--no-speculation"}
NO_TEXT = {"embeddings.py", "helpers/embed_child.py", "hybrids.py"}
"""Their own engines generate nothing: they embed, or only plan."""


def starts_quire(node: ast.AST) -> bool:
    """Whether this is a call that makes an engine, or the words of a `quire serve`."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return (node.func.id if isinstance(node.func, ast.Name) else name) in STARTS
    if isinstance(node, ast.List):
        words = {one.value for one in node.elts if isinstance(one, ast.Constant)}
        return {"quire", "serve"} <= words
    return False


def names_speculation(node: ast.AST) -> bool:
    return (isinstance(node, ast.keyword) and node.arg in NAMES) or (
        isinstance(node, ast.Constant) and node.value in NAMES
    )


def test_each_benchmark_that_starts_an_engine_names_speculation() -> None:
    """Every function, so that a second engine of a file cannot be forgotten."""
    starting = [
        (str(path.relative_to(BENCH)), [*ast.walk(function)])
        for path in BENCH.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and any(map(starts_quire, ast.walk(function)))
    ]
    assert len(starting) > 10
    silent = {name for name, nodes in starting if not any(map(names_speculation, nodes))}
    assert silent == NO_TEXT


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"speculation": True}, True),
        ({"speculative_config": {"method": "suffix"}}, None),
    ],
)
def test_a_peer_does_not_guess_unless_asked(
    options: dict[str, Any], expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quire, "LLM", lambda **settings: settings)
    made: Any = VllmLike("quire", "model", options)
    assert made._llm.get("speculation") is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"load_format": "dummy"}, False),
        ({"load_format": "dummy", "speculative_config": {"method": "suffix"}}, True),
        ({}, True),
    ],
)
def test_made_up_weights_are_measured_without_guesses(
    options: dict[str, Any],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class MadeError(Exception):
        pass

    def made(args: EngineArgs) -> LLM:
        assert args.speculation is expected
        raise MadeError

    monkeypatch.setattr(LLM, "from_engine_args", made)
    with pytest.raises(MadeError):
        offline._make_llm(EngineArgs("model", **options), 0)
    assert ("Speculation is off" in capsys.readouterr().out) is not expected
