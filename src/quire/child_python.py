"""The command line of a child process that runs one of our modules with this interpreter.

For processes that trust us and that we trust: they see the same modules as this one.
"""

from __future__ import annotations

import sys

_RUN_MODULE = (
    "import sys; n = int(sys.argv[2]) + 3; module, sys.path[:] = sys.argv[1], sys.argv[3:n]; "
    "from importlib import import_module; sys.exit(import_module(module).main(*sys.argv[n:]))"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """What starts `module.main(*arguments)`; its result is the exit code.

    The import system passes over what is no text in `sys.path`, and so do we.
    """
    paths = [path for path in sys.path if isinstance(path, str)]
    return [sys.executable, "-c", _RUN_MODULE, module, str(len(paths)), *paths, *arguments]
