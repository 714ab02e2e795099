"""`ByteDetokenizer`: joins the bytes of tokens; `detokenizer_of`: makes the one for a tokenizer."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.tokenizer.detokenizer import IncrementalDetokenizer
from quire.tokenizer.window_detokenizer import WindowDetokenizer

if TYPE_CHECKING:
    from quire.tokenizer.pieces import PieceTable
    from quire.tokenizer.tokenizer import Tokenizer

_NO_IDS: frozenset[int] = frozenset()


def detokenizer_of(
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
    kept_token_ids: Iterable[int] = (),
) -> IncrementalDetokenizer:
    """The implementation for this tokenizer. Reads only the prompt's last tokens.

    `kept_token_ids` are not left out by `skip_special_tokens`.
    `spaces_between_special_tokens` affects only decoders that put spaces between tokens.
    """
    skipped = _NO_IDS
    if skip_special_tokens:
        skipped = tokenizer.special_token_ids
        if kept := frozenset(kept_token_ids):
            skipped -= kept
    if tokenizer.pieces is not None:
        return ByteDetokenizer(tokenizer.pieces, prompt_token_ids, skipped)
    is_unspaced = not skip_special_tokens and not spaces_between_special_tokens
    return WindowDetokenizer(
        tokenizer, prompt_token_ids, skipped, tokenizer.added_tokens if is_unspaced else {}
    )


class ByteDetokenizer(IncrementalDetokenizer):
    """Joins bytes: constant time per token."""

    def __init__(
        self, table: PieceTable, prompt_token_ids: Sequence[int], skipped: frozenset[int]
    ) -> None:
        self._table = table
        self._skipped = skipped
        self._pending = b""
        """Bytes of an incomplete character."""
        tail = self._last_bytes(prompt_token_ids)
        self._strips_first = table.strips_first_space and not tail
        self._decode(tail)
        self._is_untouched = True
        """Whether no token came after the prompt: `_pending` holds bytes of the prompt."""

    def push(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == 1:
            return self._push_one(token_ids[0])
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        if self._is_untouched:
            return ""
        return self._pending.decode("utf-8", self._table.errors)

    def _push_one(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        piece = self._table.piece(token_id)
        if type(piece) is str and not self._pending:
            text = piece
        else:
            text = self._decode(self._table.piece_bytes(token_id))
        if self._is_untouched and piece:
            self._is_untouched = False
            return text.removeprefix(" ") if self._strips_first else text
        return text

    def _decode(self, data: bytes) -> str:
        data = self._pending + data
        text, used = codecs.utf_8_decode(data, self._table.errors, False)
        self._pending = data[used:]
        return text

    def _last_bytes(self, token_ids: Sequence[int]) -> bytes:
        """The prompt's last four bytes or more: an incomplete character has at most three."""
        tail = b""
        for token_id in reversed(token_ids):
            if token_id not in self._skipped:
                tail = self._table.piece_bytes(token_id) + tail
            if len(tail) >= 4:
                break
        return tail
