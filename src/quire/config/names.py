"""Checks the names of engine arguments when an `EngineArgs` is made.

Unknown names are refused, with the nearest known name. vLLM's names that are not implemented are
refused unless their value has no effect (`unsupported.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from quire.config.unsupported import UNSUPPORTED
from quire.errors import ConfigError, UnknownArgumentError, quoted
from quire.suggest import did_you_mean

T = TypeVar("T")


def check_names(given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The arguments among `given` that are `known`.

    Raises UnknownArgumentError for an unknown name, ConfigError for an unsupported argument of
    vLLM whose value would have an effect.
    """
    known = set(known)
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            kept[name] = value
        elif name in UNSUPPORTED:
            _check_neutral(name, value)
        else:
            raise UnknownArgumentError(_unknown_message(name, known))
    return kept


def checked_arguments(cls: type[T]) -> type[T]:
    """Class decorator for a dataclass: its constructor runs keywords through `check_names`."""
    make = cls.__init__
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(make)
    def init(self: T, *args: Any, **given: Any) -> None:
        make(self, *args, **check_names(given, names))

    cls.__init__ = init  # type: ignore[assignment,method-assign]
    return cls


def _check_neutral(name: str, value: object) -> None:
    entry = UNSUPPORTED[name]
    if value is None or any(
        type(value) is type(allowed) and value == allowed for allowed in entry.neutral
    ):
        return
    raise ConfigError(
        f"{name}={quoted(value)} is not supported: {entry.reason}; "
        f"leave it out or at {entry.neutral[0] if entry.neutral else None!r}"
    )


def _unknown_message(name: str, known: set[str]) -> str:
    return f"unknown engine argument {quoted(name)}{did_you_mean(name, [*known, *UNSUPPORTED])}"
