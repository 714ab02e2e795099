"""Configurations, records and environment variables without secrets."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from quire.redaction import HIDDEN, is_secret, redact

_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASS|HEADERS|CREDENTIAL|AUTH", re.I)
"""The same for environment variables."""


def redacted(value: Any) -> Any:
    """A JSON value without secrets: texts at any depth, and all values with names of secrets."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if is_secret(name) and _holds_text(inner) else redacted(inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(inner) for inner in value]
    return value


def environment(prefixes: Iterable[str]) -> dict[str, str]:
    """The environment variables whose names begin so, without secrets; sorted."""
    starts = tuple(prefixes)
    return {
        name: "(set, not shown)" if _VARIABLE.search(name) else redact(value)
        for name, value in sorted(os.environ.items())
        if name.startswith(starts)
    }


def shown(record: Any) -> str:
    """The `repr` of a dataclass record without secrets."""
    fields = (
        f"{one.name}={_shown_field(one.name, getattr(record, one.name))}"
        for one in dataclasses.fields(record)
        if one.repr
    )
    return f"{type(record).__qualname__}({', '.join(fields)})"


def _shown_field(name: str, value: object) -> str:
    return repr(HIDDEN) if is_secret(name) and value else redact(repr(value))


def _holds_text(value: object) -> bool:
    """Whether a value can be a secret: texts and numbers can, switches and None cannot."""
    return value is not None and not isinstance(value, bool)
