"""Commands of child processes that run a module of Quire with this interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from quire.errors import QuireError

_RUN_MODULE = (
    "import sys; n = int(sys.argv[2]) + 3; module, sys.path[:] = sys.argv[1], sys.argv[3:n]; "
    "from importlib import import_module; sys.exit(import_module(module).main(*sys.argv[n:]))"
)
_DIE_WITH_PARENT = (  # prctl(PR_SET_PDEATHSIG, SIGKILL)
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


def dying_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module.main(*arguments)`; its result is the exit code. For trusted
    processes: they have the same `sys.path` as this one. The kernel kills such a process when the
    thread that starts it ends.

    Entries of `sys.path` that are not strings are left out, as the import system ignores them. An
    interpreter that runs nothing else asks the kernel for the kill, because what a Python
    installation runs at each start (`sitecustomize`) may hang. Only Linux has this signal.
    """
    paths = [path for path in sys.path if isinstance(path, str)]
    command = [sys.executable, "-c", _RUN_MODULE, module, str(len(paths)), *paths, *arguments]
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


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
