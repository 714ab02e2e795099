"""The walls: packages import downwards only, and nothing goes in circles.

Reads the sources, so that imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import quire

SRC = Path(quire.__file__).parent

LAYERS: list[list[str]] = [
    ["errors", "units"],
    ["env"],
    ["log"],
    ["params", "inputs", "outputs"],
    ["config"],
    ["protocol"],
    ["kvcache", "kvstore", "program"],
    ["scheduler", "models"],
    ["weights"],
    ["sampling"],
    ["backends"],
    ["worker"],
    ["executor"],
    ["tokenizer", "metrics"],
    ["engine"],
    ["llm"],
    ["server", "bench"],
    ["cli"],
    ["__main__"],
]
"""Lowest first. Packages of one layer do not import each other."""

CONTROL = {"kvcache", "kvstore", "scheduler"}
DATA = {"program", "models", "weights", "sampling", "backends"}
"""The two sides that meet in `protocol` only."""

DATA_FILES = {"demo_model"}


def _package(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "quire":
                names = [f"quire.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("quire.")}
    return found


def _edges() -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for path in SRC.rglob("*.py"):
        if path == SRC / "__init__.py":
            continue
        package = _package(path)
        edges.setdefault(package, set()).update(_imports(path) - {package})
    return edges


def test_every_package_has_a_layer() -> None:
    known = {name for layer in LAYERS for name in layer} | DATA_FILES
    assert set(_edges()) <= known


def test_imports_go_down_only() -> None:
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    upward = [
        f"{package} -> {target}"
        for package, targets in _edges().items()
        for target in targets
        if target in rank and rank[target] >= rank[package]
    ]
    assert upward == []


def test_control_and_data_sides_do_not_know_each_other() -> None:
    edges = _edges()
    crossing = [
        f"{package} -> {target}"
        for package, targets in edges.items()
        for target in targets
        if (package in CONTROL and target in DATA) or (package in DATA and target in CONTROL)
    ]
    assert crossing == []


def test_only_the_cuda_backend_may_import_torch() -> None:
    for path in SRC.rglob("*.py"):
        if "cuda" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & {"torch", "transformers"}, path


def test_no_pickle_and_no_eval() -> None:
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert "pickle" not in {alias.name for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module != "pickle", path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path
