"""Checks the names of engine arguments when an `EngineArgs` is made.

Unknown names are refused, with the nearest known name. vLLM's names that are not implemented are
refused unless their value has no effect (`vllm_names.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from quire.config.vllm_names import unsupported
from quire.errors import ConfigError, UnknownArgumentError, quoted
from quire.log import get_logger
from quire.suggest import did_you_mean

T = TypeVar("T")

logger = get_logger(__name__)


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
        elif name in unsupported():
            _check_neutral(name, _plain(value))
            _tell_without_effect(name, _plain(value))
        else:
            raise UnknownArgumentError(_unknown_message(name, known))
    return kept


def checked_arguments(cls: type[T]) -> type[T]:
    """Class decorator for a dataclass: its constructor runs keywords through `check_names`.

    Unsupported arguments that were accepted become attributes of the record, as in vLLM.
    """
    make = cls.__init__
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(make)
    def init(self: T, *args: Any, **given: Any) -> None:
        kept = check_names(given, names)
        make(self, *args, **{name: _plain(value) for name, value in kept.items()})
        vars(self).update((name, given[name]) for name in given if name not in kept)

    cls.__init__ = init  # type: ignore[assignment,method-assign]
    return cls


def check_assigned(record: Any) -> None:
    """Checks attributes that were set after the record was made, as `check_names` does."""
    known = {field.name for field in dataclasses.fields(record)}
    for name, value in vars(record).items():
        if name in known:
            continue
        if name not in unsupported():
            raise UnknownArgumentError(_unknown_message(name, known))
        _check_neutral(name, _plain(value))


def default_of(name: str) -> Any:
    """vLLM's default of an unsupported argument. Raises AttributeError for any other name."""
    if name not in unsupported():
        raise AttributeError(f"EngineArgs has no argument {name!r}")
    return copy.deepcopy(unsupported()[name].default)


def _plain(value: object) -> object:
    """Configuration objects as dicts, enums as their values, a torch dtype as its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, enum.Enum):
        return value.value
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    return value


def _check_neutral(name: str, value: object) -> None:
    entry = unsupported()[name]
    if not entry.accepts(value):
        raise ConfigError(
            f"{name}={quoted(value)} is not supported: {entry.reason}; "
            f"leave it out or at {entry.default!r}"
        )


def _tell_without_effect(name: str, value: object) -> None:
    entry = unsupported()[name]
    if not entry.is_refused and value is not None and value != entry.default:
        logger.info("%s=%s has no effect here: %s", name, quoted(value), entry.reason)


def _unknown_message(name: str, known: set[str]) -> str:
    return f"unknown engine argument {quoted(name)}{did_you_mean(name, [*known, *unsupported()])}"
