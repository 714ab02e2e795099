"""Counts the reasoning tokens of a reply, for its usage."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.tokenizer import IncrementalDetokenizer


class ReasoningTokenCount:
    """Counts the tokens whose text begins within the reasoning; tokens of the tags do not count.

    The spans of reasoning come from the reply's parser. The split of the tokens into pieces does
    not affect the result.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        """`detokenizer`: a new one that produces the same text as the parser gets."""
        self._detokenizer = detokenizer
        self._length = 0
        self._begins = array("q")
        """Position of each token's text, in characters."""

    def push(self, token_ids: Sequence[int]) -> None:
        """Add more tokens of the reply."""
        for token_id in token_ids:
            self._begins.append(self._length)
            self._length += len(self._detokenizer.push((token_id,)))

    def count(self, spans: Iterable[tuple[int, int]]) -> int:
        """Number of tokens so far within these `reasoning_spans` of the parser."""
        begins = self._begins
        return sum(bisect_left(begins, end) - bisect_left(begins, begin) for begin, end in spans)
