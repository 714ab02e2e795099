"""Child processes that run a module of Quire with this interpreter, and end with this process.

For trusted processes: they have the same `sys.path` and environment as this one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

_RUN_MODULE = (
    "import sys; n = int(sys.argv[2]) + 3; module, sys.path[:] = sys.argv[1], sys.argv[3:n]; "
    "from importlib import import_module; sys.exit(import_module(module).main(*sys.argv[n:]))"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module.main(*arguments)`; its result is the exit code.

    Entries of `sys.path` that are not strings are left out, as the import system ignores them.
    """
    paths = [path for path in sys.path if isinstance(path, str)]
    return [sys.executable, "-c", _RUN_MODULE, module, str(len(paths)), *paths, *arguments]


def die_with_parent(parent: int | None = None) -> None:
    """Make the kernel kill this process when the thread that started it ends. Ends it at once if
    `parent`, where given, has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
