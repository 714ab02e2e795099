"""`argument`: declares a field of `EngineArgs`, `ServerArgs` or another record of options.

The field's name, type, default and docstring, with what is declared here, make the option of the
command line, its place in the help, the check of its value and its row in the documentation.
Fields that need nothing of this have a plain default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Check = Callable[[Any, Any], "str | None"]
"""Called with a field's value of the right type, which is not None, and its default. Returns what
must be true of the value, as the rest of a sentence; None: it is true."""


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """Properties of a field in addition to its type, default and docstring."""

    group: str | None = None
    """Group of the help: of vLLM's arguments vLLM's configuration class. None: the record's own."""
    flags: tuple[str, ...] = ()
    """Other names of the option: those of vLLM, and of llama.cpp for drafts."""
    is_common: bool = False
    """Whether the short help of commands has the option."""
    form: Literal["size", "length", None] = None
    """`size`: bytes, where the name does not end with `_bytes`; `length`: -1 may be `auto`."""
    is_repeatable: bool = False
    """Whether each use of the option gives some elements of a list."""
    check: Check | None = None


_NOTHING = Declared()


def argument(
    default: Any = dataclasses.MISSING,
    group: str | None = None,
    *flags: str,
    factory: Any = dataclasses.MISSING,
    is_common: bool = False,
    form: Literal["size", "length", None] = None,
    is_repeatable: bool = False,
    check: Check | None = None,
) -> Any:
    """A dataclass field with this default, or that of `factory`, and a `Declared`."""
    declared = Declared(group, flags, is_common, form, is_repeatable, check)
    return dataclasses.field(
        default=default, default_factory=factory, metadata={Declared: declared}
    )


def declared(field: dataclasses.Field[Any]) -> Declared:
    """The properties that a field declares."""
    found: Declared = field.metadata.get(Declared, _NOTHING)
    return found


def common_options(record: type) -> frozenset[str]:
    """Names of the fields that the short help of commands has."""
    return frozenset(one.name for one in dataclasses.fields(record) if declared(one).is_common)


def with_same_names(record: type[T], source: Any, **resolved: Any) -> T:
    """A record made of the `resolved` values, and for its other fields of the values that `source`
    has under the same names."""
    names = {one.name for one in dataclasses.fields(source)}
    shared = [one.name for one in dataclasses.fields(record) if one.name in names]  # type: ignore[arg-type]
    return record(**{**{name: getattr(source, name) for name in shared}, **resolved})


def at_least_one(example: int) -> Check:
    """The check of a number of things."""

    def check(value: int, default: int | None) -> str | None:
        del default
        return (
            None if value >= 1 else f"must be a positive whole number, got {value}; try {example}"
        )

    return check
