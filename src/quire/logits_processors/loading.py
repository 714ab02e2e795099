"""Loads the classes of logits processors: by name, as classes, and from entry points of packages.

Names come from the engine's own arguments and from installed packages, never from a checkpoint or a
request, because loading a class runs its module. `processor_names` is called while an engine is
planned; `load_processors` is called in each process that uses the classes.
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
"""Groups of entry points; those of installed packages are always loaded."""

ProcessorName = str | type[LogitsProcessor]
"""`module:Class`, or the class itself if other processes could not import it by name."""


def processor_names(given: object) -> tuple[ProcessorName, ...]:
    """All processors for the engine argument `logits_processors`: those of installed packages, then
    the given ones. Loads them. Raises ConfigError."""
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise ConfigError(
            f"logits_processors={quoted(given)} must be a list of classes or of names such as "
            "'package.module:Class'"
        )
    own: list[Any] = list(given or ())
    return (*_installed(), *(_importable(_load(one)) for one in own))


def load_processors(names: Sequence[ProcessorName]) -> list[type[LogitsProcessor]]:
    """Load the classes. Raises ConfigError that names a class that cannot be loaded."""
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
    """Load one class; imports its module if necessary."""
    if isinstance(name, type):
        return _checked(name)
    if not isinstance(name, str):
        raise ConfigError(
            f"logits_processors: {quoted(name)} must be a class or a name such as "
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
            raise ConfigError(f"logits processor {class_name(found)} must define {left}")
        return found
    named = class_name(found) if isinstance(found, type) else quoted(found)
    raise ConfigError(
        f"logits processor {named} must be a subclass of LogitsProcessor from "
        "quire.logits_processors or, in programs written for vLLM, from "
        "vllm.v1.sample.logits_processor"
    )


def _importable(cls: type[LogitsProcessor]) -> ProcessorName:
    """The name, if it identifies the same class in any process; otherwise the class."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return class_name(cls) if found is cls and cls.__module__ != "__main__" else cls
