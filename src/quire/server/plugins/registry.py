"""`ParserRegistry`: parsers by name, as vLLM's managers keep them.

A parser is registered as a class, or as the place of one, which is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from quire.errors import ConfigError, quoted

Parser = TypeVar("Parser", bound=type)


class ParserRegistry:
    """A subclass has the parsers of one kind."""

    base: ClassVar[type]
    """Base class of all parsers."""
    kind: ClassVar[str]
    """Name of the kind in messages."""
    given: ClassVar[dict[str, type]]
    lazy_parsers: ClassVar[dict[str, tuple[str, str]]]
    """Name -> module and class."""
    imported: ClassVar[list[ModuleType]]
    """Plug-in files. A place that cannot be imported is looked for in them, because the examples
    of vLLM's documentation name modules that their files are not."""

    @classmethod
    def own(cls, name: str) -> type | None:
        """The class for one of Quire's formats; None for any other name."""
        raise NotImplementedError

    @classmethod
    def own_names(cls) -> Iterable[str]:
        """The names of Quire's formats."""
        raise NotImplementedError

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
        return sorted({*cls.given, *cls.lazy_parsers, *cls.own_names()})

    @classmethod
    def register_lazy_module(cls, name: str, module_path: str, class_name: str) -> None:
        """The parser `name` is this class of this module."""
        cls.given.pop(name, None)
        cls.lazy_parsers[name] = (module_path, class_name)

    @classmethod
    def register_module(
        cls,
        name: str | list[str] | None = None,
        force: bool = True,
        module: Parser | None = None,
    ) -> Any:
        """Registers a class under these names, or under its own; without one, returns a decorator
        that does. `force`: also in the place of another. Raises TypeError, and KeyError."""
        if not isinstance(force, bool):
            raise TypeError(f"force must be a boolean, but got {type(force)}")
        if module is None:
            return cls._decorator(name, force)
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
    def _decorator(cls, name: str | list[str] | None, force: bool) -> Callable[[Parser], Parser]:
        def register(parser: Parser) -> Parser:
            cls.register_module(name, force, parser)
            return parser

        return register

    @classmethod
    def _imported(cls, module: str, name: str) -> object:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            for plugin in cls.imported:
                if hasattr(plugin, name):
                    return getattr(plugin, name)
            raise ConfigError(f"{cls.kind} {module}.{name} cannot be imported: {error}") from error
