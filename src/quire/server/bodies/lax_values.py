"""Decodes bodies and forms whose values must be converted to their types, such as `"5"` to an
integer; unknown fields are left out.

Called for what the strict decoder refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

_MAX_CHARS = 4300
"""Longest text of a number; Python's own limit for integers."""
_INT = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.0+)?", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(?:inf|infinity|nan|"
    r"(?:\d+(?:_\d+)*(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:e[+-]?\d+)?)",
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


Body = TypeVar("Body", bound=msgspec.Struct)
MAX_UNKNOWN = 64
"""Most unknown fields that are counted by name."""
_JSON_TYPES: dict[type[inspect.Type], type] = {
    inspect.NoneType: type(None),
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.ListType: list,
    inspect.DictType: dict,
    inspect.StructType: dict,
}
_LAX = {inspect.IntType: as_int, inspect.FloatType: as_float, inspect.BoolType: as_bool}
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_lax(
    data: bytes, strict: msgspec.json.Decoder[Body], kind: type[Body], unknown: dict[str, None]
) -> Body:
    """The body as `kind`, whose decoder is `strict`. Adds the fields of `data` that `kind` does not
    have to `unknown`, as `name` or `outer.name`; a null asks for nothing and is not added.

    Raises msgspec.DecodeError, which names the field.
    """
    fitter, types = _Fitter(unknown), _field_types(kind)
    given = _fields_decoder.decode(data)
    known = {name: bytes(raw) for name, raw in given.items() if name in types}
    if len(known) < len(given):
        for name, raw in given.items():
            if name not in types and bytes(raw) != b"null":
                fitter.tell(name)
        parts = [b'"%b":%b' % (name.encode(), raw) for name, raw in known.items()]
        with suppress(msgspec.ValidationError):
            return strict.decode(b"{" + b",".join(parts) + b"}")
    fields = {
        name: fitter.fit(_decoded(name, raw), types[name], name) for name, raw in known.items()
    }
    return _converted(fields, kind)


def decode_form(values: Mapping[str, Any], kind: type[Body]) -> Decoded[Body]:
    """The texts, lists of texts and files of a form as `kind`. Raises msgspec.ValidationError."""
    unknown: dict[str, None] = {}
    fitter, types, fields = _Fitter(unknown), _field_types(kind), {}
    for name, value in values.items():
        if name in types:
            fields[name] = fitter.fit(value, types[name], name)
        else:
            fitter.tell(name)
    return Decoded(_converted(fields, kind, builtin_types=(bytes,)), unknown)


def decode_lax_value(data: bytes, kind: Any) -> Any:
    """Decodes a value other than an object as `kind`. Raises msgspec.DecodeError."""
    value = msgspec.json.decode(data)
    return _converted(_Fitter({}).fit(value, inspect.type_info(kind), ""), kind)


def _converted(value: Any, kind: type[Body], **options: Any) -> Body:
    """`msgspec.convert`, whose errors about a choice name what may be chosen."""
    try:
        converted: Body = msgspec.convert(value, kind, **options)
    except msgspec.ValidationError as error:
        found = _NO_CHOICE.fullmatch(str(error))
        choices = found and _choices([inspect.type_info(kind)], _STEP.findall(found[2]))
        if not found or not choices:
            raise
        message = f"{found[1]}; it must be one of {', '.join(map(repr, choices))}{found[2]}"
        raise msgspec.ValidationError(message) from None
    return converted


def _choices(types: Iterable[inspect.Type], steps: Sequence[str]) -> list[Any]:
    """The values of the literal types at the end of a path of names and `[...]`."""
    types = [one for kind in types for one in getattr(kind, "types", (kind,))]
    if not steps:
        literals = (one.values for one in types if isinstance(one, inspect.LiteralType))
        return [value for values in literals for value in values]
    step, *rest = steps
    inner: list[inspect.Type] = []
    for one in types:
        if isinstance(one, inspect.StructType):
            inner += [field.type for field in one.fields if field.encode_name == step]
        elif step.startswith("["):
            inner += [getattr(one, name) for name in _ITEMS if hasattr(one, name)]
    return _choices(inner, rest)


_NO_CHOICE = re.compile(r"(Invalid enum value .*?)( - at `[^`]*`)?", re.DOTALL)
_STEP = re.compile(r"\[[^]]*\]|[^.`$\[\s]+(?=[.`\[])")
"""A name or an index of a path such as `$.tools[0].type`."""
_ITEMS = ("item_type", "value_type")


def _decoded(name: str, raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise msgspec.ValidationError(f"{error} - at `$.{name}`") from None


@lru_cache(maxsize=64)
def _field_types(kind: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {field.encode_name: field.type for field in found.fields}


class _Fitter:
    """Fits values to types: converts scalars, and takes unknown fields out of objects."""

    def __init__(self, unknown: dict[str, None]) -> None:
        self._unknown = unknown

    def tell(self, path: str) -> None:
        """Adds an unknown field."""
        if len(self._unknown) < MAX_UNKNOWN:
            self._unknown[path] = None

    def fit(self, value: Any, kind: inspect.Type, path: str) -> Any:
        """The value, converted where only conversion makes it one of `kind`."""
        members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        for member in members:
            if _JSON_TYPES.get(type(member)) is type(value):
                return self._inside(value, member, path)
        for member in members:
            if type(member) in _LAX:
                return _LAX[type(member)](value)
        return value

    def _inside(self, value: Any, kind: inspect.Type, path: str) -> Any:
        if isinstance(kind, inspect.ListType):
            return [self.fit(item, kind.item_type, path) for item in value]
        if isinstance(kind, inspect.DictType):
            return {key: self.fit(item, kind.value_type, path) for key, item in value.items()}
        if not isinstance(kind, inspect.StructType):
            return value
        types, kept = _field_types(kind.cls), {}
        for name, item in value.items():
            if name in types:
                kept[name] = self.fit(item, types[name], f"{path}.{name}")
            elif item is not None:
                self.tell(f"{path}.{name}")
        return kept


@dataclass(slots=True)
class Decoded(Generic[Body]):
    """A body, and the names of fields in it that its type does not have."""

    body: Body
    unknown: dict[str, None] = field(default_factory=dict)
