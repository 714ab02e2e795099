"""`PieceTable`: the bytes of each token, for decoders that work token by token.

A byte-level vocabulary spells every token in bytes; a SentencePiece-like one in text with
`▁` for a space and `<0xE4>` for single bytes. Nearly all vocabularies are of these two kinds: they
are decoded by joining bytes, and incremental decoding needs no window. Called by `Tokenizer`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError

if TYPE_CHECKING:
    import tokenizers


@contextmanager
def library_errors(error: Callable[[str], QuireError]) -> Iterator[None]:
    """Raises `error(text)` if the library raises or panics; `text` is the library's message.

    A TypeError passes unchanged: it is the caller's mistake.
    """
    try:
        yield
    except (QuireError, TypeError):
        raise
    except Exception as refusal:
        raise error(f"the tokenizers library refuses it: {refusal}") from None
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        raise error(f"the tokenizers library panics: {panic}") from None


_MAX_ID = 2**32 - 1
"""Maximum token id in the Rust library."""


@dataclass(frozen=True, slots=True)
class _Style:
    """A decoder's conversion of a token's text to bytes, and whether it strips the first space."""

    to_bytes: Callable[[str], bytes]
    strips_first_space: bool
    errors: str
    """The error handler for bytes that are no UTF-8."""


class PieceTable:
    """Token ids to bytes, filled as ids are seen.

    Invariant: for ids that give valid UTF-8, `text` equals the Rust library's decode. The
    byte-level kind agrees for all ids. Threads may share it: adding an entry twice is harmless.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, style: _Style, special_ids: frozenset[int]
    ) -> None:
        self.strips_first_space = style.strips_first_space
        self.special_ids = special_ids
        self.errors = style.errors
        self._id_to_token = backend.id_to_token
        self._vocab = backend.get_vocab
        self._to_bytes = style.to_bytes
        self._pieces: dict[int, str | bytes] = {}

    def piece(self, token_id: int) -> str | bytes:
        """A token's text, or its bytes if they are not complete characters.

        Empty for an unknown id. `strips_first_space` is not applied.
        """
        piece = self._pieces.get(token_id)
        return self._spell(token_id) if piece is None else piece

    def piece_bytes(self, token_id: int) -> bytes:
        """The piece of a token, always in bytes."""
        piece = self.piece(token_id)
        return piece.encode() if isinstance(piece, str) else piece

    def bytes_of_all(self, num_ids: int) -> list[bytes]:
        """`piece_bytes` of all ids below `num_ids`, of which none is kept."""
        found = [b""] * num_ids
        for token, token_id in self._vocab().items():
            if token_id < num_ids:
                found[token_id] = self._to_bytes(token)
        return found

    def text(self, ids: Iterable[int], skip_special_tokens: bool) -> str:
        """The text of these ids from the start of a sequence."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        joined = b"".join([self.piece_bytes(each) for each in ids if each not in skipped])
        if self.strips_first_space:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", self.errors)

    def _spell(self, token_id: int) -> str | bytes:
        token = self._id_to_token(token_id) if 0 <= token_id <= _MAX_ID else None
        if token is None:
            return ""  # not stored: too many ids have no token
        data = self._to_bytes(token)
        piece: str | bytes = data
        with suppress(UnicodeDecodeError):
            piece = data.decode()
        self._pieces[token_id] = piece
        return piece


def piece_table(backend: tokenizers.Tokenizer) -> PieceTable | None:
    """The table for this tokenizer; None where its decoder looks beyond single tokens."""
    added = backend.get_added_tokens_decoder()
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    style = _style_of(json.loads(backend.decoder.__getstate__())) if backend.decoder else None
    return PieceTable(backend, style, special_ids) if style else None


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for every invalid byte, as the Rust byte fallback decodes."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("quire.each_byte", _each_byte)


def _style_of(decoder: dict[str, Any]) -> _Style | None:
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _Style(_spelled_in_letters, strips_first_space=False, errors="replace")
    strips = kinds == ["Replace", "ByteFallback", "Fuse", "Strip"]
    if not strips and kinds != ["Replace", "ByteFallback", "Fuse"]:
        return None
    if strips and (steps[3]["content"], steps[3]["start"], steps[3]["stop"]) != (" ", 1, 0):
        return None
    if steps[0].get("pattern") != {"String": "▁"} or steps[0].get("content") != " ":
        return None
    return _Style(_spelled_in_text, strips_first_space=strips, errors="quire.each_byte")


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
