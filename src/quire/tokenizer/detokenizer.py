"""Converts a request's tokens to text incrementally; never returns an incomplete character.

The output processor owns one `IncrementalDetokenizer` per request. The text continues the prompt's
text: a character that begins in the prompt can end in the output. `byte_detokenizer` makes them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence


class IncrementalDetokenizer(ABC):
    """The text of a growing list of tokens.

    Invariant: all returned text, joined, is the decoded text so far without an incomplete
    character at its end; after `finish`, it is the whole text.
    """

    @abstractmethod
    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is final after these tokens; may be empty, or include text of earlier
        tokens."""

    def copy(self) -> IncrementalDetokenizer:
        """Another one at the same place."""
        return copy.copy(self)

    @abstractmethod
    def finish(self) -> str:
        """The rest of the text, an incomplete character as U+FFFD. No `push` comes after."""
