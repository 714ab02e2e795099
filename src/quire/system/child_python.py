"""Commands of child processes that run a module of Quire with this interpreter."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from quire.errors import QuireError

_PR_SET_PDEATHSIG = 1

_RUN_MODULE = (
    "import sys; n = int(sys.argv[2]) + 3; module, sys.path[:] = sys.argv[1], sys.argv[3:n]; "
    "from importlib import import_module; sys.exit(import_module(module).main(*sys.argv[n:]))"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module.main(*arguments)`; its result is the exit code. For trusted
    processes: they have the same `sys.path` as this one.

    Entries of `sys.path` that are not strings are left out, as the import system ignores them.
    """
    paths = [path for path in sys.path if isinstance(path, str)]
    return [sys.executable, "-c", _RUN_MODULE, module, str(len(paths)), *paths, *arguments]


def isolated_command(module: str, packages: Sequence[str], user: str) -> list[str]:
    """The command that runs `module.main()` without `site`, users' modules, and the environment
    variables of Python. `packages`: what it can import besides the standard library. Raises
    QuireError, naming the `user`, if one is not there."""
    folders = []
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise QuireError(f"{user} need the package {package}, which cannot be found")
        folders.append(str(Path(spec.origin).parents[1]))
    code = f"import sys; sys.path += sys.argv[1:]; from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, *dict.fromkeys(folders)]


def die_with_parent(parent: int | None = None) -> None:
    """Make the kernel kill this process when the thread that started it ends. Ends it at once if
    `parent`, where given, has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
