"""`WindowDetokenizer`: for tokenizers whose decoder looks beyond one token."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quire.tokenizer.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from quire.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_WINDOW_TOKENS = 6
"""Tokens of context; a character has at most 4 bytes."""


class WindowDetokenizer(IncrementalDetokenizer):
    """Decodes a short window twice, with and without the new tokens, and takes the difference.

    Invariant: the window holds the tokens of the `_settled` text, then fewer than `_WINDOW_TOKENS`
    tokens whose text is not returned yet.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        skipped: frozenset[int],
        unspaced: Mapping[int, str],
    ) -> None:
        """`unspaced`: tokens that have no space between them, with their texts."""
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._unspaced = unspaced
        self._window: list[int] = []
        self._num_settled = 0
        self._last_was_added = False
        for token_id in reversed(prompt_token_ids):
            if token_id not in self._skipped:
                self._window.insert(0, token_id)
            if len(self._window) == _WINDOW_TOKENS:
                break
        self._num_settled = len(self._window)
        self._settled = self._decode(self._window).rstrip(_REPLACEMENT)

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def copy(self) -> IncrementalDetokenizer:
        copied = copy.copy(self)
        copied._window = self._window.copy()
        return copied

    def finish(self) -> str:
        return self._settle(self._decode(self._window))

    def _push_one(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        added = self._unspaced.get(token_id)
        follows_added, self._last_was_added = self._last_was_added, added is not None
        text = self._decode(self._window)
        num_pending = len(self._window) - self._num_settled
        if text.endswith(_REPLACEMENT) and num_pending < _WINDOW_TOKENS:
            return ""
        new_text = self._settle(text)
        return added if added is not None and follows_added else new_text

    def _settle(self, text: str) -> str:
        new_text = text[len(self._settled) :]
        del self._window[: self._num_settled]
        self._num_settled = len(self._window)
        self._settled = self._decode(self._window)
        return new_text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
