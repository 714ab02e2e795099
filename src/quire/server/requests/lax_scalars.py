"""Converts JSON scalars to numbers and booleans as pydantic's lax mode does, on which vLLM's HTTP
API is built: `"5"`, `5.0` and `true` are the integer 5, 5 and 1. Called by `lax_body`.

A value that does not convert is returned unchanged, so that the strict decoder refuses it by name.
Source: pydantic, docs/concepts/conversion_table.md.
"""

from __future__ import annotations

import re
from typing import Any

_MAX_CHARS = 4300
"""Longest text of a number; Python's own limit for integers."""
_INT = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.0+)?", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(?:inf|infinity|nan|(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:e[+-]?\d+)?)",
    re.ASCII | re.IGNORECASE,
)
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE = frozenset({"0", "f", "false", "n", "no", "off"})


def as_int(value: Any) -> Any:
    """An integer of a whole float, a boolean, or a text such as `" 5 "` and `"5.0"`."""
    if type(value) is bool:
        return int(value)
    if type(value) is float and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if type(value) is str and len(value) <= _MAX_CHARS:
        found = _INT.fullmatch(value.strip())
        return value if found is None else int(found[1])
    return value


def as_float(value: Any) -> Any:
    """A float of a boolean, or a text such as `"0.5"`, `"1e-3"` and `"nan"`."""
    if type(value) is bool:
        return float(value)
    if type(value) is str and len(value) <= _MAX_CHARS and _FLOAT.fullmatch(value.strip()):
        return float(value)
    return value


def as_bool(value: Any) -> Any:
    """A boolean of 0 and 1, or a text such as `"true"` and `"off"`."""
    if type(value) in (int, float) and value in (0, 1):
        return bool(value)
    if type(value) is str and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    return value
