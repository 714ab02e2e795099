"""How many tokens of a reply are reasoning, for its usage."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.tokenizer import IncrementalDetokenizer


class ReasoningTokenCount:
    """Counts the tokens whose text begins within the reasoning: the tags are none of them.

    What is reasoning is said by the parser of the reply, so that tokens are counted as the text is
    told; in which parts they come changes nothing.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        """`detokenizer`: a new one, which gives the text that the parser gets."""
        self._detokenizer = detokenizer
        self._length = 0
        self._begins = array("q")
        """For each token the place of its text, in characters."""

    def push(self, token_ids: Sequence[int]) -> None:
        """More tokens of the reply."""
        for token_id in token_ids:
            self._begins.append(self._length)
            self._length += len(self._detokenizer.push((token_id,)))

    def count(self, spans: Iterable[tuple[int, int]]) -> int:
        """Tokens so far in these `reasoning_spans` of the parser."""
        begins = self._begins
        return sum(bisect_left(begins, end) - bisect_left(begins, begin) for begin, end in spans)
