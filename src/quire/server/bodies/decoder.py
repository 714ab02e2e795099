"""Decodes JSON bodies to their types, and finds unknown fields. Called by
`read_body`.

Most bodies hold known fields of the right types: one strict decoding is all they take. What it
refuses is decoded again by `lax_body`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(slots=True)
class Decoded(Generic[Body]):
    """A body, and the names of fields in it that its type does not have."""

    body: Body
    unknown: dict[str, None] = field(default_factory=dict)


class BodyDecoder(Generic[Body]):
    """Decodes bodies of one type, whose structs forbid unknown fields."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        self._strict = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> Decoded[Body]:
        """Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError."""
        try:
            return self._decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            from quire.server.bodies.json_scan import in_its_field  # needs NumPy

            raise in_its_field(data, error) from None

    def _decode(self, data: bytes) -> Decoded[Body]:
        try:
            return Decoded(self._strict.decode(data))
        except msgspec.ValidationError:
            from quire.server.bodies.lax import decode_lax  # rarely needed

            unknown: dict[str, None] = {}
            return Decoded(decode_lax(data, self._strict, self.kind, unknown), unknown)


@lru_cache(maxsize=32)
def body_decoder(kind: Any) -> BodyDecoder[Any]:
    """The decoder of a type."""
    return BodyDecoder(kind)
