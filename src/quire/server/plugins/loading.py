"""Plug-ins that an operator named on the command line: files with parsers of replies.

Their code runs in the server's process, with all that it may do. Nothing else loads one: no
checkpoint, no request.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from quire.errors import ConfigError, quoted

_NAMES = "quire.vllm"
"""Its import makes `import vllm` work, which plug-ins begin with. Named as a text, since it lies
above the server."""


def import_plugin(path: str, option: str = "plugin") -> ModuleType:
    """A file of Python, or a module by its name. Raises ConfigError, which names the option."""
    import_module(_NAMES)
    file = Path(path).expanduser()
    if file.suffix != ".py" and not file.is_file():
        try:
            return import_module(path)
        except ImportError as error:
            raise ConfigError(
                f"{option}={quoted(path)} cannot be imported: {error}; name a Python file or an "
                "installed module"
            ) from error
    if not file.is_file():
        raise ConfigError(f"{option}={quoted(path)} is not a file; name a Python file")
    return _run(file, option)


def _run(file: Path, option: str) -> ModuleType:
    name = file.stem if file.stem not in sys.modules else f"{file.stem}_plugin"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{option}={quoted(str(file))} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(
            f"{option}={quoted(str(file))} ends with {type(error).__name__}: {error}"
        ) from error
    return module
