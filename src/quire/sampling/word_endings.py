"""`WordEndings`: the tokens that would complete a word of several tokens.

Used by the worker for bad words, and by the front end for beams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class WordEndings:
    """Words of two or more tokens. Immutable."""

    __slots__ = ("_words", "longest")

    def __init__(self, words: Iterable[list[int]]) -> None:
        """Shorter words are left out."""
        self.longest = 0
        """Most tokens on which a result depends."""
        self._words: dict[int, list[list[int]]] = {}
        """Words by their second to last token."""
        for word in words:
            if len(word) > 1:
                self.longest = max(self.longest, len(word) - 1)
                self._words.setdefault(word[-2], []).append(word)

    def after(self, tokens: Sequence[int]) -> list[int]:
        """The last tokens of the words whose other tokens end this list."""
        if not self._words or not tokens:
            return []
        found = self._words.get(tokens[-1], ())
        return [word[-1] for word in found if [*tokens[1 - len(word) :]] == word[:-1]]
