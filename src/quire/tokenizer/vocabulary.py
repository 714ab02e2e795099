"""`Vocabulary`: the tokens of a checkpoint, and the text of token ids, over the Rust `tokenizers`
library.

The base of `Tokenizer`, which turns text into ids. Knows no model and no request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from quire.errors import CheckpointError
from quire.log import get_logger
from quire.tokenizer.pieces import PieceTable, library_errors, piece_table

if TYPE_CHECKING:
    import tokenizers

logger = get_logger(__name__)

MAX_TOKENS_BEFORE = 4
"""Tokens before one that its text may depend on: no character has more bytes."""
_REPLACEMENT = "\ufffd"


class Vocabulary:
    """A checkpoint's tokens. Immutable; any thread may call it."""

    def __init__(self, backend: tokenizers.Tokenizer, roles: Mapping[str, str]) -> None:
        """`roles` gives special tokens by name (`eos_token`, ...)."""
        self.backend = backend
        self.roles = dict(roles)
        self._has_warned = False
        self._token_texts: dict[int, str] = {}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of these ids: invalid UTF-8 becomes U+FFFD, unknown ids are left out.

        If the checkpoint's decoder fails: U+FFFD alone, and a warning at the first failure.
        """
        if self.pieces is not None:
            return self.pieces.text(ids, skip_special_tokens)
        known = [token_id for token_id in ids if 0 <= token_id <= self.max_token_id]
        try:
            with library_errors(_no_text):
                return self.backend.decode(known, skip_special_tokens=skip_special_tokens)
        except CheckpointError as error:
            if not self._has_warned:
                logger.warning("%s", error)
            self._has_warned = True
            return "\ufffd"

    def token_text(self, token_id: int) -> str:
        """The text of one token, special or not, within a text: with a space at its begin, if it
        has one. Cached."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._text_of_one(token_id)
            if 0 <= token_id <= self.max_token_id:  # other ids are too many to cache
                self._token_texts[token_id] = text
        return text

    def text_after(self, token_id: int, before: Sequence[int]) -> str:
        """The text of one token that follows others, of which the last few matter: empty if it ends
        inside a character; the whole character, and all that was held back, if it completes one.
        """
        text = self._token_texts.get(token_id)
        if text is None:
            text = self.token_text(token_id)
        if text[-1:] != _REPLACEMENT:
            return text
        ids = [token_id]
        for earlier in reversed(before[-MAX_TOKENS_BEFORE:]):
            if not self.token_text(earlier).endswith(_REPLACEMENT):
                break
            ids.insert(0, earlier)
            text = self.decode(ids, skip_special_tokens=False)
            if not text.endswith(_REPLACEMENT):
                return text
        return ""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's entry, as it is spelled there; None for an unknown id."""
        return self.backend.id_to_token(token_id) if 0 <= token_id <= self.max_token_id else None

    def token_to_id(self, token: str) -> int | None:
        """The id of a vocabulary entry, or None."""
        return self.backend.token_to_id(token)

    @cached_property
    def pieces(self) -> PieceTable | None:
        """The bytes of each token, where the decoder works token by token."""
        return piece_table(self.backend)

    @cached_property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Added tokens by id, special or not."""
        added = self.backend.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items()}

    @cached_property
    def added_texts(self) -> dict[str, bool]:
        """Whether each added token is special, by its text."""
        special = self.special_token_ids
        return {text: token_id in special for token_id, text in self.added_tokens.items()}

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """The ids that `skip_special_tokens` leaves out."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def max_token_id(self) -> int:
        """The highest id. A base vocabulary counts from 0 without holes."""
        base = self.backend.get_vocab_size(with_added_tokens=False)
        return max(base - 1, *self.added_tokens, 0)

    @property
    def bos_token_id(self) -> int | None:
        """The start token's id, or None."""
        return self._role_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The end token's id, or None."""
        return self._role_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The padding token's id, or None."""
        return self._role_id("pad_token")

    def _text_of_one(self, token_id: int) -> str:
        if self.pieces is not None:
            return self.pieces.piece_bytes(token_id).decode("utf-8", self.pieces.errors)
        text = self.decode([token_id], skip_special_tokens=False)
        mark, token = self._space_mark, self.id_to_token(token_id) or ""
        if mark is None:
            return text
        num_spaces = len(token) - len(token.lstrip(mark))
        return " " * (num_spaces - len(text) + len(text.lstrip(" "))) + text

    @cached_property
    def _space_mark(self) -> str | None:
        """Character that stands for a space in tokens, if the decoder leaves out the first space of
        a text."""
        decoder = self.backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder else {}
        return state.get("replacement") if state.get("type") == "Metaspace" else None

    def _role_id(self, role: str) -> int | None:
        token = self.roles.get(role)
        return None if token is None else self.backend.token_to_id(token)


def _no_text(words: str) -> CheckpointError:
    return CheckpointError(f"the model's tokenizer cannot decode some tokens: {words}")
