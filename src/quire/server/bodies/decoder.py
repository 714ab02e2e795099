"""`BodyDecoder`: decodes the JSON bodies of one type. A body that is not strictly of that type is
decoded again by `lax_values`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic

import msgspec

from quire.server.bodies.lax_values import Body, Decoded, decode_lax


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
            unknown: dict[str, None] = {}
            return Decoded(decode_lax(data, self._strict, self.kind, unknown), unknown)


@lru_cache(maxsize=32)
def body_decoder(kind: Any) -> BodyDecoder[Any]:
    """The decoder of a type."""
    return BodyDecoder(kind)
