"""Command-line options made from dataclasses: one definition for Python and the shell.

A field `max_model_len: int | None = None` with the text below it becomes
`--max-model-len` with that text as help. Called by the commands; knows nothing of
engines or servers, only of dataclass fields.

argparse underneath, because vLLM's flags need it: `--x/--no-x` also for `bool | None`,
a model that may be positional or `--model`, short forms such as `-tp`.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from quire.config.command_line.values import (
    parse_count,
    parse_duration,
    parse_json,
    parse_length,
    parse_size,
    parse_truth,
)
from quire.config.declaration import declared
from quire.errors import quoted

T = TypeVar("T")
Field = dataclasses.Field[Any]


def flag(field_name: str) -> str:
    """`max_model_len` -> `--max-model-len`."""
    return "--" + field_name.replace("_", "-")


def add_options(
    parser: argparse.ArgumentParser,
    record: type,
    *,
    title: str,
    skip: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    shows_defaults: bool = False,
) -> None:
    """One option for every field of the dataclass `record` that is not in `skip`.

    `title`: the group in the help of fields that declare none. `defaults` replaces single fields'
    defaults, in the help and in `read`. An option that is not given is absent from the namespace,
    or there with its default where `shows_defaults`. Raises TypeError for a field whose type no
    option can hold.
    """
    groups = _Groups(parser)
    documents = field_documents(record)
    hints = typing.get_type_hints(record)
    for field in dataclasses.fields(record):
        if field.name in skip or not field.init:
            continue
        default = _default(field)
        if defaults is not None and field.name in defaults:
            default = defaults[field.name]
        groups.get(declared(field).group or title).add_argument(
            flag(field.name),
            *declared(field).flags,
            dest=field.name,
            default=default if shows_defaults else argparse.SUPPRESS,
            help=_help(documents.get(field.name, ""), default),
            **_shape(hints[field.name], field),
        )


class _Groups:
    """The groups of a parser by title, each made when it is first asked for."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._made: dict[str, Any] = {
            group.title: group for group in parser._action_groups if group.title
        }

    def get(self, title: str) -> Any:
        if title not in self._made:
            self._made[title] = self._parser.add_argument_group(title)
        return self._made[title]


def read(
    record: type[T], args: argparse.Namespace, *, defaults: Mapping[str, Any] | None = None
) -> T:
    """The dataclass, from the options that were given; the rest keep their defaults."""
    hints = typing.get_type_hints(record)
    given = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        if hasattr(args, field.name):
            value = getattr(args, field.name)
            is_tuple = get_origin(hints[field.name]) is tuple
            given[field.name] = tuple(_listed(value)) if is_tuple else value
    return record(**{**(defaults or {}), **given})


def _listed(words: Sequence[Any]) -> Sequence[Any]:
    """The elements of a list: its words, or one word that is the list in JSON, as vLLM has it."""
    if len(words) == 1 and str(words[0]).startswith("["):
        with suppress(ValueError):
            elements = json.loads(words[0])
            return [str(element) for element in elements]
    return words


def field_documents(record: type) -> dict[str, str]:
    """The docstring of each field of a dataclass and its bases; empty without source code."""
    found: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if dataclasses.is_dataclass(base):
            found.update(_documents_of(base))
    return found


def _documents_of(record: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(record))
    except (OSError, TypeError):
        return {}
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    found = {}
    for statement, following in itertools.pairwise(body):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _help(document: str, default: Any) -> str:
    text = " ".join(document.split()).replace("%", "%%")
    if default is dataclasses.MISSING or default is None or default in ("", [], {}, ()):
        return text
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    return f"{text} (default: {shown})".strip().replace("%%", "%").replace("%", "%%")


def _shape(hint: Any, field: Field) -> dict[str, Any]:
    """Keyword arguments of argparse for a field of this type. An optional field accepts `None`,
    unless it is a choice among words."""
    own = _without_none(hint)
    shape = _shape_of(own, field)
    if {bool, str} <= set(get_args(own)):
        shape |= {"nargs": "?", "const": True}  # an option without a value is on, as in vLLM
    if own is not hint and shape.get("type") not in (None, parse_json):
        shape["type"] = _or_none(shape["type"])
    return shape


def _or_none(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "None" else reader(text)


def _shape_of(hint: Any, field: Field) -> dict[str, Any]:
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        values = [str(value) for value in inner]
        return {"choices": values, "metavar": "{" + ",".join(values) + "}"}
    if origin in (list, tuple, Sequence, set, frozenset) or hint in (list, tuple):
        element = inner[0] if inner else str
        shape = {"nargs": "+", "type": _reader(element, field), "metavar": _metavar(element)}
        return {**shape, "action": "extend"} if declared(field).is_repeatable else shape
    if origin in (dict, Mapping) or hint is dict:
        return {"type": parse_json, "metavar": "JSON"}
    if origin in (Union, types.UnionType):
        return _union_shape(inner, field)
    return {"type": _reader(hint, field), "metavar": _metavar(hint)}


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    inner = tuple(arg for arg in get_args(hint) if arg is not type(None))
    return inner[0] if len(inner) == 1 else Union[inner]  # noqa: UP007


def _union_shape(inner: tuple[Any, ...], field: Field) -> dict[str, Any]:
    """`str | list[str]` takes one or more words; `int | str` the first reader that fits."""
    lists = [arg for arg in inner if get_origin(arg) in (list, tuple, Sequence)]
    if lists:
        return _shape_of(lists[0], field)
    if any(get_origin(arg) in (dict, Mapping) for arg in inner):
        return {"type": parse_json, "metavar": "JSON"}
    readers = [_reader(arg, field) for arg in inner if arg is not str and arg is not bool]
    if bool in inner:
        readers.insert(0, parse_truth)

    def first_that_fits(text: str) -> Any:
        for reader in readers:
            try:
                return reader(text)
            except (argparse.ArgumentTypeError, ValueError):
                continue
        if str in inner:
            return text
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a value of this option")

    return {"type": first_that_fits, "metavar": "VALUE"}


def _reader(hint: Any, field: Field) -> Callable[[str], Any]:
    name, form = field.name, declared(field).form
    if form == "length":
        return parse_length
    if hint is int:
        return parse_size if name.endswith("_bytes") or form == "size" else parse_count
    if hint is float:
        return parse_duration if name.endswith("_ttl") else float
    if hint is Path:
        return Path
    if hint in (str, Any, object) or type in get_args(hint):  # a class is named
        return str
    if get_origin(hint) is Literal:
        return str
    raise TypeError(f"field {name}: no option can hold a {hint}")


def _metavar(hint: Any) -> str:
    return {int: "N", float: "X", Path: "PATH"}.get(hint, "TEXT")
