"""A pytest plug-in: placeholders for the names of vLLM that Quire does not have.

While pytest collects tests, every missing module and name gives a placeholder, which takes any
use, so that a file can be read whose other tests use what is there. While tests run, a placeholder
that is used fails the test with the missing name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import pytest

from quire.vllm import finder, missing

_collecting = True
_find_spec = finder.VllmFinder.find_spec
_get_name = finder.SurfaceModule.__getattr__
_make_class = missing.placeholder


def pytest_collection_finish() -> None:
    """From here on, a placeholder fails the test that uses it."""
    global _collecting
    _collecting = False


class Placeholder:
    """Stands for a name that is missing."""

    def __init__(self, reason: str) -> None:
        self.__dict__.update(reason=reason, __name__="missing", __qualname__="missing")

    def __repr__(self) -> str:
        return f"<{self.reason}>"

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        return _use(self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """A function that is decorated with a placeholder fails; a class stays as it is."""
        _use(self)
        decorated = args[0] if len(args) == 1 and not options else None
        if isinstance(decorated, type):
            return decorated
        if isinstance(decorated, FunctionType):
            return functools.wraps(decorated)(lambda *_, **__: _use(self))
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        _use(self)
        return (_base(self),)

    def __or__(self, other: object) -> Placeholder:
        """In an annotation, which does not use the name."""
        del other
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter((_use(self),))

    def __bool__(self) -> bool:
        _use(self)
        return False

    def __index__(self) -> int:
        _use(self)
        return 1

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""


def _operator(self: Placeholder, *args: Any, **options: Any) -> Any:
    del args, options
    return _use(self)


_OPERATORS = (
    "getitem setattr setitem enter contains len add radd sub rsub mul rmul truediv floordiv pow "
    "rpow neg lt le gt ge and instancecheck subclasscheck"
)
for _name in _OPERATORS.split():
    setattr(Placeholder, f"__{_name}__", _operator)
for _name, _value in (("len", 1), ("contains", False), ("instancecheck", False)):
    setattr(Placeholder, f"__{_name}__", lambda self, *_, value=_value: _use(self) and value)


def _use(one: Placeholder) -> Placeholder:
    if not _collecting:
        pytest.fail(one.reason, pytrace=False)
    return one


def _base(one: Placeholder) -> type:
    """Class that replaces a placeholder among the bases of a class."""

    class Missing:
        def __new__(cls, *args: Any, **options: Any) -> Any:
            del args, options
            _use(one)
            return object.__new__(cls)

        def __init_subclass__(cls, **options: Any) -> None:
            """Takes the options of any base."""

    return Missing


class _Module(ModuleType):
    """A module that is missing."""

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        return _of_name(self, name)


class _Loader:
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def _of_name(module: ModuleType, name: str) -> Any:
    """A placeholder for a name of a module, which the module keeps."""
    value = Placeholder(missing.explain(f"{module.__name__}.{name}"))
    _use(value)
    setattr(module, name, value)
    return value


def _find_or_stand_in(
    self: finder.VllmFinder,
    fullname: str,
    path: Sequence[str] | None = None,
    target: ModuleType | None = None,
) -> ModuleSpec | None:
    try:
        return _find_spec(self, fullname, path, target)
    except ModuleNotFoundError:
        if not _collecting:
            raise
        loader: Any = _Loader()
        return ModuleSpec(fullname, loader, is_package=True)


def _get_or_stand_in(self: finder.SurfaceModule, name: str) -> Any:
    try:
        return _get_name(self, name)
    except AttributeError:
        if not _collecting or name[:2] == "__":
            raise
        return _of_name(self, name)


def of_tests(name: str) -> Any:
    """For a name that a stand-in of vLLM's tests does not have."""
    if not _collecting or name.startswith(("__", "pytest_", "collect_ignore")):
        raise AttributeError(name)
    return Placeholder(f"No {name} in the stand-ins for vLLM's tests")


class _LenientMeta(type(_make_class("", "", ""))):  # type: ignore[misc]
    """Classes that Quire says are missing: they take any use while pytest collects tests."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if bases and _collecting:
            return type.__new__(cls, name, bases, {"reason": bases[0].reason, **namespace})
        return super().__new__(cls, name, bases, namespace)

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if _collecting:
            return Placeholder(f"Quire has no {cls.__module__}.{cls.__name__}: {cls.reason}")
        return super().__call__(*args, **options)

    def __getattr__(cls, name: str) -> Any:
        if _collecting and name[:2] != "__":
            return cls()
        return super().__getattr__(name)


def _make_lenient_class(module: str, name: str, reason: str) -> type:
    made: type = _LenientMeta(
        name, (), {"__module__": module, "__qualname__": name, "reason": reason}
    )
    return made


finder.VllmFinder.find_spec = _find_or_stand_in  # type: ignore[method-assign]
finder.SurfaceModule.__getattr__ = _get_or_stand_in  # type: ignore[method-assign]
finder.placeholder = _make_lenient_class
for _module in [each for name, each in sys.modules.items() if name.partition(".")[0] == "vllm"]:
    for _name in missing.missing_names(_module.__name__):
        _module.__dict__.pop(_name, None)  # made before this plug-in was loaded
