"""`PieceTable`: the bytes of each token, for decoders that work token by token.

A byte-level vocabulary spells every token in bytes; a SentencePiece-like one in text with
`▁` for a space and `<0xE4>` for single bytes. Nearly all vocabularies are of these two kinds: they
are decoded by joining bytes, and incremental decoding needs no window. Called by `Tokenizer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.tokenizer.spellings import Style, style_of

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


class PieceTable:
    """Token ids to bytes, filled as ids are seen.

    Invariant: for ids that give valid UTF-8, `text` equals the Rust library's decode. The
    byte-level kind agrees for all ids. Threads may share it: adding an entry twice is harmless.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, style: Style, special_ids: frozenset[int]
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
    style = style_of(json.loads(backend.decoder.__getstate__())) if backend.decoder else None
    return PieceTable(backend, style, special_ids) if style else None
