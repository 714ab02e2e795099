"""The walls: packages import downwards only, no module imports in a circle, chains are short.

Reads the sources, so that imports inside functions and under TYPE_CHECKING count too, where a
test does not say otherwise.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import quire

SRC = Path(quire.__file__).parent

LAYERS: list[list[str]] = [
    ["redaction"],
    ["errors", "redacted_settings", "suggest", "units", "version"],
    ["env", "system"],
    ["log", "files", "forbidden_tokens", "param_checks", "timestamp_rules"],
    ["reasoning", "repetition", "token_checks"],
    ["structured", "adapters"],
    ["params", "outputs"],
    ["gguf", "images"],
    ["inputs", "config", "beam_search"],
    ["protocol", "logits_processors"],
    ["kvcache", "kvstore", "program"],
    ["scheduler", "models", "placement"],
    ["weights"],
    ["sampling", "ranks"],
    ["backends"],
    ["tokenizer", "metrics"],
    ["chat"],
    ["parsers"],
    ["planning"],
    ["worker"],
    ["executor"],
    ["core"],
    ["frontend"],
    ["transcription"],
    ["llm"],
    ["server", "bench"],
    ["cli", "ray"],
    ["vllm"],
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
    """The packages that a file imports; `quire` itself for a bare `import quire`."""
    found = {name.split(".")[1] for name in _modules_of(path) if name != "quire"}
    return found | ({"quire"} & _modules_of(path))


class _Imports(NamedTuple):
    """What a file imports: `module`, or `module:name` of something in it."""

    at_start: set[str]
    """As soon as the file is imported itself."""
    later: set[str]


@cache  # to parse the files takes most of the time
def _imports_of(path: Path) -> _Imports:
    found = _Imports(set(), set())
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while todo:
        node, is_late = todo.pop()
        if isinstance(node, ast.Import):
            found[is_late].update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found[is_late].update(f"{module}:{alias.name}" for alias in node.names)
        is_late |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += [(child, is_late) for child in getattr(node, part, ())]
    return found


def _top_names(path: Path) -> set[str]:
    """`numpy` for whatever a file imports of it; nothing for a relative import."""
    return {re.split("[.:]", name)[0] for names in _imports_of(path) for name in names}


def _modules_of(path: Path, *, at_start_only: bool = False) -> frozenset[str]:
    """The modules of Quire that a file imports, by full name.

    `at_start_only`: those that are imported as soon as the file is.
    """
    found = _imports_of(path)
    names = found.at_start if at_start_only else found.at_start | found.later
    modules = (
        member if (member := name.replace(":", ".")) in MODULES else name.partition(":")[0]
        for name in names
    )
    return frozenset(name for name in modules if name.split(".")[0] == "quire")


def _module_name(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module_name(path): path for path in SRC.rglob("*.py")}
LONGEST_CHAIN = 16
"""Most modules that import each other in a row, each as soon as the one before is imported."""
MOST_FILES = 20
"""Most files of code in one folder."""


@cache
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


@pytest.mark.parametrize("at_start_only", [True, False])
def test_no_module_imports_itself_by_way_of_others(at_start_only: bool) -> None:
    graph = {
        name: _modules_of(path, at_start_only=at_start_only) & MODULES.keys()
        for name, path in MODULES.items()
        if name != "quire"
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_import_chains_are_short() -> None:
    graph = {
        name: (_modules_of(path, at_start_only=True) & MODULES.keys()) - {name}
        for name, path in MODULES.items()
    }
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        longest = max((chains[other] for other in graph[name]), key=len, default=[])
        chains[name] = [name, *longest]
    longest = max(chains.values(), key=len)
    assert len(longest) <= LONGEST_CHAIN, " > ".join(longest)


def test_only_the_hook_of_plugins_names_the_package_with_the_names_of_vllm() -> None:
    """Nothing imports `quire.vllm`, so that the rest of Quire can be read without it."""
    naming = {
        path.relative_to(SRC).as_posix()
        for path in MODULES.values()
        if _package(path) != "vllm"
        and any(
            isinstance(node, ast.Constant) and re.match(r"quire\.vllm\b", str(node.value))
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert naming == {"server/reply_plugins.py"}


def test_no_folder_is_crowded() -> None:
    folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    crowded = {str(folder): count for folder, count in folders.items() if count > MOST_FILES}
    assert crowded == {}


def test_subfolders_import_each_other_in_one_direction() -> None:
    """Of two folders in one package, one may import the other, and not the other way round."""
    folders = {name: path.parent.relative_to(SRC).parts for name, path in MODULES.items()}
    arrows: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
    for name, path in MODULES.items():
        for other in _modules_of(path) & MODULES.keys():
            mine, its = folders[name], folders[other]
            depth = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), 0)
            if depth:
                arrows[mine[: depth + 1], its[: depth + 1]] = f"{name} -> {other}"
    mutual = {text for (one, other), text in arrows.items() if (other, one) in arrows}
    assert arrows
    assert mutual == set()


def test_most_packages_say_what_they_have() -> None:
    """In more than one or two lines: the entry, the parts, and what is not known there."""
    short = [path for path in SRC.rglob("__init__.py") if len(path.read_text().splitlines()) <= 2]
    assert len(short) <= 30


APIS = SRC / "server" / "apis"
ALIASES = {"invocations.py", "hugging_face/vertex.py", "scores.py"}
"""Routes that take the bodies of other APIs; `/rerank` is one of text-embeddings-inference, too."""


def test_no_api_imports_another() -> None:
    """What they share is in packages that no API owns. So a new API changes no other."""
    prefix = "quire.server.apis."
    crossing = {
        f"{path.relative_to(APIS).as_posix()} -> {name}"
        for path in APIS.rglob("*.py")
        for name in _modules_of(path)
        if name.startswith(prefix)
        and name.split(".")[3] not in {path.relative_to(APIS).parts[0].removesuffix(".py")}
        and path.relative_to(APIS).as_posix() not in ALIASES
    }
    assert crossing == set()


def test_what_apis_share_does_not_know_them() -> None:
    """An API is a leaf: it can be added or taken out without a change elsewhere."""
    knowing = {
        f"{name} -> {other}"
        for name, path in MODULES.items()
        if re.match(r"quire\.server\.(requests|conversation|generation|bodies|http)\.", name)
        for other in _modules_of(path)
        if other.startswith("quire.server.apis.")
    }
    assert knowing == set()


def test_no_import_is_relative() -> None:
    assert [path for path in MODULES.values() if "" in _top_names(path)] == []


def test_few_modules_import_what_a_gpu_needs() -> None:
    """A machine without a GPU has neither package, and a run needs no compiler."""
    cuda = SRC / "backends/cuda"
    allowed = {"cuda": {cuda / "driver.py"}, "triton": {cuda / "build.py"}}
    allowed["triton"].update((cuda / "kernels").rglob("*.py"))
    for path in MODULES.values():
        found = {package for package in allowed if package in _top_names(path)}
        assert all(path in allowed[package] for package in found), path


def test_only_models_of_transformers_may_import_torch() -> None:
    for path in MODULES.values():
        if path.parent.name != "transformers":
            assert not _top_names(path) & {"torch", "transformers"}, path


@pytest.mark.parametrize(
    "option",
    ["cache_salt", "chat_template_kwargs", "kv_transfer_params", "lora_request",
     "mm_processor_kwargs"],
)  # fmt: skip
def test_few_modules_name_an_option_of_a_request(option: str) -> None:
    """Public methods and the first reader name an option; the layers below pass a record on. The
    server is not counted, because its schemas are the fields of the APIs."""
    named = [
        name
        for name, path in MODULES.items()
        if not name.startswith("quire.server.") and re.search(rf"\b{option}\b", path.read_text())
    ]
    assert 0 < len(named) <= 8, named


def test_no_pickle_and_no_eval() -> None:
    for path in MODULES.values():
        assert "pickle" not in _top_names(path), path
        assert not re.search(r"(?<![\w.])(eval|exec)\(", path.read_text()), path


MADE_EXPRESSIONS = {
    "config/checkpoint/expressions.py": "single characters, and escaped texts",
    "config/command_line/values.py": "constants of the module",
    "frontend/inputs/images/placing.py": "escaped texts",
    "frontend/scoring.py": "constants of the module",
    "models/base.py": "constants of the families, and escaped texts",
    "parsers/tool_format.py": "constants of the formats, and escaped texts",
    "parsers/reader.py": "escaped texts",
    "program/printer.py": "escaped texts",
    "redaction.py": "constants of the module",
    "server/requests/request.py": "escaped texts",
    "structured/tags/texts.py": "escaped texts",
    "tokenizer/borders.py": "escaped texts",
    "tokenizer/formats/byte_pieces.py": "a pattern of tekken.json, for an engine that gives up",
    "tokenizer/formats/sentencepiece.py": "constants of the module",
    "tokenizer/formats/sentencepiece_parts.py": "escaped texts",
    "tokenizer/rust_tokenizer.py": "constants of the module",
    "worker/draft/loading.py": "constants of the module",
}
"""Modules whose expressions are not written where they are used, with what these consist of."""
_USES = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}


def test_an_expression_is_written_where_it_is_used_or_listed() -> None:
    """`re` takes exponential time for some expressions, and no other thread runs meanwhile. Those
    of files are matched by `config/checkpoint/expressions.py`."""

    def is_made(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or (node.args and isinstance(node.args[0], ast.Constant)):
            return False
        match node.func:
            case ast.Attribute(ast.Name("re" | "regex"), name):
                return name in _USES
            case ast.Name(name) | ast.Attribute(_, name):
                return name in {"Regex", "fnmatch", "fnmatchcase"}
        return False

    found = {
        path.relative_to(SRC).as_posix()
        for path in MODULES.values()
        if any(map(is_made, ast.walk(ast.parse(path.read_text()))))
    }
    assert found == MADE_EXPRESSIONS.keys()
    assert not [
        path
        for path in MODULES.values()
        for name in _USES
        if f"re:{name}" in _imports_of(path).at_start | _imports_of(path).later
    ]


def test_commands_print_without_control_characters() -> None:
    """`say` removes them; names of clients and files would control the terminal otherwise."""
    printing = {
        path.relative_to(SRC).as_posix()
        for path in MODULES.values()
        if any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert printing == {"log/writer.py", "cli/terminal.py", "vllm/own/commands.py",
                        "vllm/own/vectors.py"}  # fmt: skip


def test_a_number_that_a_request_asks_for_is_in_five_files() -> None:
    """`min_p` stands for each: what gives it from elsewhere (a checkpoint, the command line, the
    page, an API's defaults) and what refuses it by name are beside that."""
    elsewhere = (
        "config",
        "gguf",
        "cli",
        "bench",
        "server/ui",
        "server/apis/llama_server/routes.py",
        "server/requests/beam_fields.py",
        "backends",
    )
    native = Path(__file__).parents[1] / "native"
    found = {
        str(path.relative_to(top))
        for top in (SRC, native)
        for path in top.rglob("*")
        if path.suffix in {".py", ".cpp", ".h"}
        and not any(path.is_relative_to(SRC / name) for name in elsewhere)
        and re.search(r"\bmin_p\b", path.read_text("utf-8"))
    }
    assert found == {
        "params.py",
        "sampling/columns.py",
        "sampling/reference.py",
        "server/requests/fields.py",
        "src/sampling/sampler.cpp",
    }
