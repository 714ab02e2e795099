"""`python -m quire.vllm`: restarts Python so that `import vllm` imports Quire, or runs one of
vLLM's commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from quire.cli import main as quire_main
from quire.cli.app import COMMANDS
from quire.suggest import did_you_mean
from quire.vllm.surface import VLLM_VERSION

_STARTUP = Path(__file__).parents[1] / "startup"
_BIN = _STARTUP / "bin"
_ROOT = Path(__file__).parents[3]
_MODULE = "quire.vllm"
_USAGE = f"""\
usage: python -m {_MODULE} SCRIPT arguments...
       python -m {_MODULE} -m MODULE arguments...
       python -m {_MODULE} -c CODE arguments...
       python -m {_MODULE} COMMAND options...

Runs an unchanged program written for vLLM {VLLM_VERSION} on Quire. In the program and the processes
that it starts, `import vllm` imports Quire, and the command `vllm` runs Quire. COMMAND is one of
vLLM's: serve, chat, complete, bench, run-batch, collect-env."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs vLLM's command line or a program. A program replaces this process."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in ([], ["-h"], ["--help"], ["help"]):
        print(_USAGE)
        return 0
    if words[0] in _command_names() or words[0] in ("-v", "-V", "--version"):
        return command_line(words)
    problem = _problem(words[0])
    if not problem:
        _become_program(words)
    print(f"{_MODULE}: {problem}", file=sys.stderr)
    return 2


def command_line(argv: Sequence[str] | None = None) -> int:
    """Runs vLLM's command `vllm`. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["-v"], ["-V"], ["--version"]):
        print(VLLM_VERSION)
        return 0
    return quire_main(words)


def _command_names() -> list[str]:
    return [command.name for command in COMMANDS]


def _problem(word: str) -> str:
    """Why this process cannot become a program that begins with `word`; empty if it can."""
    if not word.startswith("-") and not Path(word).exists():
        hint = did_you_mean(word, _command_names())
        return f"{word!r} must be a file or a command{hint}"
    if sys.flags.ignore_environment or sys.flags.no_site:
        return "Python's options -E, -I and -S are not supported; leave them out"
    return ""


def _become_program(words: list[str]) -> NoReturn:
    """Replaces this process by `python words...` with the folder of `sitecustomize` on PYTHONPATH
    and the folder of the command `vllm` on PATH."""
    installed = PathFinder.find_spec("vllm")
    if installed is not None and installed.origin:
        place = Path(installed.origin).parent
        print(f"{_MODULE}: `import vllm` imports Quire, not {place}", file=sys.stderr)
    found_here = str(_ROOT) if sys.path[0] == str(_ROOT) else None  # `-m` looks in this directory
    paths = [str(_STARTUP), found_here, os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ["PATH"] = os.pathsep.join([str(_BIN), os.environ.get("PATH", os.defpath)])
    os.environ["QUIRE_PYTHON"] = sys.executable
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *_interpreter_options(words), *words])


def _interpreter_options(words: Sequence[str]) -> list[str]:
    """The options of this interpreter, which come before `-m quire.vllm`."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
    last = options.pop()
    if last == _MODULE:
        last = options.pop()
    last = last.removesuffix(_MODULE).removesuffix("m")
    return options if last == "-" else [*options, last]
