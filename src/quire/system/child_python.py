"""The command line of a child process that runs a module of Quire with this interpreter.

For trusted processes: they have the same `sys.path` and environment as this one.
"""

from __future__ import annotations

import sys

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
