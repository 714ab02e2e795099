"""Checks each field of a record of options against its declared type, and with its declared check.

Used for `EngineArgs` and `ServerArgs`. The code that resolves a value checks what depends on other
values.
"""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from quire.config.declaration import declared
from quire.errors import ConfigError, quoted

MAX_TEXT_CHARS = 1 << 20
"""Far longer than any name, path or template."""
_MAX_DEPTH = 64
_MAX_VALUES = 1 << 20
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
_SECRETS = frozenset({"api_key", "operator_api_key", "hf_token"})
"""Fields whose values must not appear in messages."""

_NAMES: dict[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a finite number", str: "a text",
}  # fmt: skip


def check_fields(record: Any) -> None:
    """Raises ConfigError for the first field whose value does not match its type or its check.

    Numbers must be finite and fit in 64 bits; texts must be valid as file names are, without
    NUL; dicts must hold what JSON can.
    """
    hints = _hints(record.__class__)
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        hint = hints[field.name]
        if get_origin(hint) is Literal and not (isinstance(value, str) and value in get_args(hint)):
            choices = ", ".join(get_args(hint))
            raise ConfigError(f"{field.name}={quoted(value)} is not known; use one of {choices}")
        problem = _problem(hint, value)
        if problem is not None:
            shown = type(value).__name__ if field.name in _SECRETS else quoted(value)
            raise ConfigError(f"{field.name} must be {problem}, got {shown}; {_advice(field)}")
        check = declared(field).check
        if check is not None and value is not None:
            problem = check(value, field.default)
            if problem is not None:
                raise ConfigError(f"{field.name} {problem}")


@cache
def _hints(record: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _advice(field: dataclasses.Field[Any]) -> str:
    default = field.default
    if default is None or default is dataclasses.MISSING or default in ("", ()):
        return "leave it out for the default"
    return f"the default is {default!r}"


def _problem(hint: Any, value: object) -> str | None:
    """Description of valid values; None if this value is valid."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and types.NoneType in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    problems = [_problem_of_one(kind, value) for kind in kinds]
    if None in problems:
        return None
    return " or ".join(problem for problem in problems if problem is not None)


def _problem_of_one(kind: Any, value: object) -> str | None:
    origin = get_origin(kind)
    if origin is Literal:
        return None
    if origin in (list, tuple):
        return _problem_of_list(value, get_args(kind)[0])
    if origin is dict:
        return None if _is_json_object(value) else "a dict of JSON values under text keys"
    if origin is Callable:
        return None if callable(value) else "a function"
    if kind is bool:
        return None if isinstance(value, bool) else _NAMES[bool]
    if kind is int:
        return _problem_of_int(value)
    if kind is type:
        return None if isinstance(value, type) else "a class"
    if kind is float:
        return None if _is_finite(value) else _NAMES[float]
    return _problem_of_text(value)


def _problem_of_int(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return _NAMES[int]
    return None if _MIN_INT <= value <= _MAX_INT else "a whole number that fits in 64 bits"


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _problem_of_text(value: object) -> str | None:
    if not isinstance(value, str):
        return _NAMES[str]
    if len(value) > MAX_TEXT_CHARS:
        return f"a text of at most {MAX_TEXT_CHARS} characters"
    try:
        is_valid = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_valid = False
    return None if is_valid else "a text of valid Unicode without NUL"


def _problem_of_list(value: object, kind: Any) -> str | None:
    if not isinstance(value, (list, tuple)):
        return "a list of texts"
    problems = (_problem(kind, element) for element in value)
    problem = next((one for one in problems if one is not None), None)
    return None if problem is None else f"a list whose elements are each {problem}"


def _is_json_object(value: object) -> bool:
    """Limited in depth and work: a Python container may hold itself, or one value many times."""
    pending = [(value, 0)]
    for _ in range(_MAX_VALUES):
        if not pending:
            return isinstance(value, dict)
        item, depth = pending.pop()
        if isinstance(item, dict) and all(isinstance(key, str) for key in item):
            pending += [(child, depth + 1) for child in item.values()]
        elif isinstance(item, (list, tuple)):
            pending += [(child, depth + 1) for child in item]
        elif not _is_json_scalar(item):
            return False
        if depth > _MAX_DEPTH:
            return False
    return False


def _is_json_scalar(value: object) -> bool:
    if isinstance(value, str):
        return _problem_of_text(value) is None
    if isinstance(value, int):
        return isinstance(value, bool) or _problem_of_int(value) is None
    return value is None or isinstance(value, float)
