"""How the tokens of a tokenizer spell bytes, by the kind of its decoder."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Style:
    """A decoder's conversion of a token's text to bytes, and whether it strips the first space."""

    to_bytes: Callable[[str], bytes]
    strips_first_space: bool
    errors: str
    """The error handler for bytes that are no UTF-8."""


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for every invalid byte, as the Rust byte fallback decodes."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("quire.each_byte", _each_byte)


def style_of(decoder: dict[str, Any]) -> Style | None:
    """The style of a decoder of the Rust library, as JSON; None if it looks beyond one token."""
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Style(_spelled_in_letters, strips_first_space=False, errors="replace")
    strips = kinds == ["Replace", "ByteFallback", "Fuse", "Strip"]
    if not strips and kinds != ["Replace", "ByteFallback", "Fuse"]:
        return None
    if strips and (steps[3]["content"], steps[3]["start"], steps[3]["stop"]) != (" ", 1, 0):
        return None
    if steps[0].get("pattern") != {"String": "▁"} or steps[0].get("content") != " ":
        return None
    return Style(_spelled_in_text, strips_first_space=strips, errors="quire.each_byte")


_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + place) for place, byte in enumerate(sorted({*range(256)} - _PRINTABLE))
}
"""GPT-2's alphabet of bytes: printable Latin-1 characters stand for themselves, the others follow
255. Source: openai/gpt-2, src/encoder.py, `bytes_to_unicode`."""
_LATIN = {
    **dict.fromkeys(range(256), "\uffff"),
    **{ord(letter): chr(byte) for byte, letter in LETTERS.items()},
}
"""For `str.translate`: each letter as the Latin-1 character of its byte, and no other one so."""
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _spelled_in_letters(token: str) -> bytes:
    """An added token with other characters is plain text."""
    try:
        return token.translate(_LATIN).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _spelled_in_text(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(match[1])
    return token.replace("▁", " ").encode()
