"""Creates the modules of `vllm` from the tables of names when they are imported.

`install` puts a finder before all others, also before the one that finds an installed vLLM. Every
child process of a script imports this module, so it imports little: it does not use the base
classes of importlib.abc.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from quire.vllm.missing import MISSING_NAMES, explain, missing_names, placeholder
from quire.vllm.surface import PROGRAMS, SURFACE, surface_names

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

_ALIAS = "quire."
"""Prefix under which the modules are available too: `quire.vllm.outputs` is `vllm.outputs`, unless
this package has a file of that name."""
_HERE = os.path.dirname(__file__)
_FILES = {name.partition(".")[0] for name in os.listdir(_HERE)}
_ORIGIN = os.path.join(_HERE, "__init__.py")
_RUN = """\
import sys
from quire.vllm.own.commands import command_line
sys.exit(command_line([*{words!r}, *sys.argv[1:]]))
"""


def _known_modules() -> frozenset[str]:
    modules = {*SURFACE, *PROGRAMS, *(m for names in MISSING_NAMES.values() for m in names)}
    return frozenset(m.rsplit(".", n)[0] for m in modules for n in range(m.count(".") + 1))


_MODULES = _known_modules()
"""All modules that can be imported."""


class SurfaceModule(ModuleType):
    """A module of vLLM. It imports each name from Quire at the first access."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{name} of vLLM's public interface, on Quire.")
        self._names = surface_names(name)
        self._missing = missing_names(name)
        self._rest = self._names.pop("*", None)
        """Module of Quire that supplies all other names; None: no other names exist."""
        self.__all__ = [name for name in (*self._names, *self._missing) if name[0] != "_"]

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__" and name not in self._names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in self._names:
            home, there = self._names[name]
            value = getattr(import_module(home), there)
        elif name in self._missing:
            value = placeholder(self.__name__, name, self._missing[name])
        elif f"{self.__name__}.{name}" in _MODULES:
            value = import_module(f"{self.__name__}.{name}")
        elif self._rest is not None:
            return getattr(import_module(self._rest[0]), name)
        else:
            raise AttributeError(explain(f"{self.__name__}.{name}"))
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        rest = dir(import_module(self._rest[0])) if self._rest else []
        return sorted({*super().__dir__(), *self.__all__, *rest})


class _Loader:
    """Creates `SurfaceModule`s, and the code that `python -m` runs."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return SurfaceModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: a `SurfaceModule` has no code."""

    def get_source(self, fullname: str) -> str | None:
        words = PROGRAMS.get(fullname.removesuffix(".__main__"))
        return None if words is None else _RUN.format(words=words.split())

    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_source(fullname)
        return None if source is None else compile(source, "<quire.vllm>", "exec")


class _AliasLoader(_Loader):
    """Imports `vllm.outputs` under the name `quire.vllm.outputs`."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(module.__name__.removeprefix(_ALIAS))


class VllmFinder:
    """Finds `vllm`, its modules and its version."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError with the missing feature for a module that Quire lacks.

        The error's `name` is not set, because `from vllm import X` hides an error that has it.
        """
        del path, target
        name = fullname.removeprefix(_ALIAS)
        if name.partition(".")[0] != "vllm":
            return None
        is_alias = name != fullname
        if is_alias and (name.count(".") == 0 or name.split(".")[1] in _FILES):
            return None
        is_main = name.removesuffix(".__main__") in PROGRAMS and name.endswith(".__main__")
        if name not in _MODULES and not is_main:
            raise ModuleNotFoundError(explain(name))
        loader: Any = _AliasLoader() if is_alias else _Loader()
        spec = ModuleSpec(fullname, loader, origin=_ORIGIN, is_package=not is_main)
        spec.has_location = True  # so that the module has a `__file__`
        return spec

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Return the distribution that `importlib.metadata.version("vllm")` reads."""
        if context.name != "vllm":
            return []
        from quire.vllm.own.version import VllmDistribution

        return [VllmDistribution()]


def install() -> ModuleType:
    """Makes `import vllm` import Quire in this process, and returns that module. Idempotent.

    Raises ImportError if vLLM itself has been imported already.
    """
    found = sys.modules.get("vllm")
    if found is not None and not isinstance(found, SurfaceModule):
        raise ImportError(
            f"vLLM is imported already, from {found.__file__}; import quire.vllm before it"
        )
    if not any(isinstance(finder, VllmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, VllmFinder())
    return import_module("vllm")
