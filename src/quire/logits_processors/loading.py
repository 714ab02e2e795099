"""Finds the classes of logits processors: by name, as classes, and as entry points of packages.

Names come from the engine's own arguments and from installed packages, never from a checkpoint or
a request: loading one runs its module. `processor_names` is called while an engine is planned, and
`load_processors` wherever the classes are used, in the process of the engine too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from quire.errors import ConfigError, quoted
from quire.logits_processors.interface import LogitsProcessor, class_name

VLLM_GROUP = "vllm.logits_processors"
GROUPS = (VLLM_GROUP, "quire.logits_processors")
"""Entry points of installed packages that are always loaded."""

ProcessorName = str | type[LogitsProcessor]
"""`module:Class`; the class itself where no other process could import it by that name."""


def processor_names(given: object) -> tuple[ProcessorName, ...]:
    """All processors of an engine with this argument `logits_processors`: those of installed
    packages, then the given ones. Loads them. Raises ConfigError."""
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise ConfigError(
            f"logits_processors={quoted(given)} must be a list of classes or of names such as "
            "'package.module:Class'"
        )
    own: list[Any] = list(given or ())
    return (*_installed(), *(_importable(_load(one)) for one in own))


def load_processors(names: Sequence[ProcessorName]) -> list[type[LogitsProcessor]]:
    """The classes. Raises ConfigError naming the one that cannot be loaded."""
    return [_load(name) for name in names]


def _installed() -> list[ProcessorName]:
    from importlib.metadata import entry_points

    found: list[ProcessorName] = []
    every = entry_points()  # reads files of all installed packages
    for group in GROUPS:
        for entry in every.select(group=group):
            try:
                found.append(_importable(_load(entry.value)))
            except ConfigError as error:
                raise ConfigError(f"entry point {entry.name!r} of {group}: {error}") from error
    return list(dict.fromkeys(found))


def _load(name: object) -> type[LogitsProcessor]:
    """Runs the module if it is not imported yet."""
    if isinstance(name, type):
        return _checked(name)
    if not isinstance(name, str):
        raise ConfigError(
            f"logits_processors: {quoted(name)} is neither a class nor a name such as "
            "'package.module:Class'"
        )
    module_name, colon, path = name.strip().partition(":")
    path = path.strip()
    if not colon or ":" in path or not module_name or not path:
        raise ConfigError(
            f"logits_processors: Invalid logits processor FQCN {quoted(name)}. Expected format: "
            "'<module>:<type>', as in 'package.module:Class'"
        )
    try:
        found: Any = import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"logits processor {quoted(name)}: importing {module_name} failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ConfigError(f"logits processor {quoted(name)}: {error}") from None
    return _checked(found)


def _checked(found: object) -> type[LogitsProcessor]:
    if isinstance(found, type) and issubclass(found, LogitsProcessor):
        left = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        if left:
            raise ConfigError(f"logits processor {class_name(found)} does not define {left}")
        return found
    named = class_name(found) if isinstance(found, type) else quoted(found)
    raise ConfigError(
        f"logits processor {named} is not a subclass of LogitsProcessor, which is in "
        "quire.logits_processors and, for programs written for vLLM, in "
        "vllm.v1.sample.logits_processor"
    )


def _importable(cls: type[LogitsProcessor]) -> ProcessorName:
    """By name, if that gives the same class in any process."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return class_name(cls) if found is cls and cls.__module__ != "__main__" else cls
