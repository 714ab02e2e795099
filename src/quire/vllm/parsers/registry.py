"""`ParserRegistry`: parsers by name, as vLLM's managers keep them, and the files of an operator's
plug-ins.

Their code runs in the server's process, with all that it may do. Nothing else loads one: no
checkpoint, no request.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from quire.errors import ConfigError, quoted


def import_plugin(path: str, option: str = "plugin") -> ModuleType:
    """A file of Python, or a module by its name. Raises ConfigError, which names the option."""
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


Parser = TypeVar("Parser", bound=type)


class ParserRegistry:
    """A subclass has the parsers of one kind."""

    base: ClassVar[type]
    """Base class of all parsers."""
    kind: ClassVar[str]
    """Name of the kind in messages."""
    formats: ClassVar[Mapping[str, Any]]
    """Quire's own formats by name."""
    option: ClassVar[str]
    """The server's option that names a plug-in file."""
    given: ClassVar[dict[str, type]]
    tool_parsers: ClassVar[dict[str, type]]
    reasoning_parsers: ClassVar[dict[str, type]]
    """vLLM's names of `given`."""
    lazy_parsers: ClassVar[dict[str, tuple[str, str]]]
    """Name -> module and class."""
    imported: ClassVar[list[ModuleType]]
    """Plug-in files. A place that cannot be imported is looked for in them, because the examples
    of vLLM's documentation name modules that their files are not."""

    _own: ClassVar[dict[str, type]]

    def __init_subclass__(cls) -> None:
        cls.given, cls.lazy_parsers, cls.imported, cls._own = {}, {}, [], {}
        cls.tool_parsers = cls.reasoning_parsers = cls.given

    @classmethod
    def make(cls, name: str) -> type:
        """A class for one of Quire's formats."""
        raise NotImplementedError

    @classmethod
    def own(cls, name: str) -> type | None:
        """The class for one of Quire's formats, the same each time; None for any other name."""
        if name in cls.formats and name not in cls._own:
            cls._own[name] = cls.make(name)
        return cls._own.get(name)

    @classmethod
    def attribute(cls, name: str) -> type:
        """The class of a format for `own_NAME`, which vLLM's modules that have one take it from.
        Raises AttributeError."""
        found = cls.own(name.removeprefix("own_"))
        if not name.startswith("own_") or found is None:
            raise AttributeError(f"there is no parser {name!r}")
        return found

    @classmethod
    def run_file(cls, plugin_path: str) -> None:
        """Runs a file, which registers its parsers. Raises ConfigError."""
        cls.imported.append(import_plugin(plugin_path, cls.option))

    @classmethod
    def find(cls, name: str) -> type | None:
        """The class that was registered under this name; None if there is none. Raises ConfigError
        for a place that has no such class."""
        if name in cls.given:
            return cls.given[name]
        if name not in cls.lazy_parsers:
            return None
        module, last = cls.lazy_parsers[name]
        found = cls._imported(module, last)
        if not isinstance(found, type) or not issubclass(found, cls.base):
            raise ConfigError(f"{module}.{last} must be a subclass of {cls.base.__name__}")
        cls.given[name] = found
        return found

    @classmethod
    def get(cls, name: str) -> type:
        """The class with this name, Quire's own among them. Raises KeyError if there is none."""
        found = cls.find(name) or cls.own(name)
        if found is None:
            names = ", ".join(cls.list_registered())
            raise KeyError(f"{cls.kind} {quoted(name)} not found. Available: {names}")
        return found

    @classmethod
    def list_registered(cls) -> list[str]:
        """All names."""
        return sorted({*cls.given, *cls.lazy_parsers, *cls.formats})

    @classmethod
    def register_lazy_module(cls, name: str, module_path: str, class_name: str) -> None:
        """The parser `name` is this class of this module."""
        cls.given.pop(name, None)
        cls.lazy_parsers[name] = (module_path, class_name)

    @classmethod
    def register_module(
        cls, name: str | list[str] | None = None, force: bool = True, module: Parser | None = None
    ) -> Any:
        """Registers a class under these names, or under its own; without one, returns a decorator
        that does. `force`: also in the place of another. Raises TypeError, and KeyError."""
        if not isinstance(force, bool):
            raise TypeError(f"force must be a boolean, but got {type(force)}")
        if module is None:
            return partial(cls.register_module, name, force)
        if not isinstance(module, type) or not issubclass(module, cls.base):
            raise TypeError(f"module must be subclass of {cls.base.__name__}, got {module!r}")
        names = [module.__name__] if name is None else [name] if isinstance(name, str) else name
        for one in names:
            if not isinstance(one, str):
                raise TypeError("module_name must be str, list[str], or None.")
            if not force and one in cls.given:
                raise KeyError(f"{one} is already registered at {cls.given[one].__module__}")
            cls.given[one] = module
        return module

    @classmethod
    def _imported(cls, module: str, name: str) -> object:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            for plugin in cls.imported:
                if hasattr(plugin, name):
                    return getattr(plugin, name)
            raise ConfigError(f"{cls.kind} {module}.{name} cannot be imported: {error}") from error
