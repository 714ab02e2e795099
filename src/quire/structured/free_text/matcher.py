"""`FreeTextMatcher`: a `GrammarMatcher` that rests as long as the text is free.

In a free text the mask stays as it is, whatever is written, until something begins that ends the
text or that it may not contain. So a grammar of calls costs nothing before a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import GrammarError
from quire.structured.free_text.places import first_bytes
from quire.structured.free_text.reading import Reading
from quire.structured.free_text.tokens import TokenTexts
from quire.structured.free_text.ways import first_ways, texts_among
from quire.structured.matcher import GrammarMatcher, Matcher
from quire.structured.tags.texts import AddedTokens

_MOST_PREPARED = 8
"""Free texts whose tables are made with the grammar; others when a request comes to them."""


class FreeTextMatcher:
    """Its masks are those of the `GrammarMatcher`, had that taken in all tokens."""

    __slots__ = ("_at_rest", "_harmless", "_matcher", "_places", "_reading", "_tokens")

    def __init__(self, matcher: GrammarMatcher, reading: Reading, tokens: TokenTexts) -> None:
        """`matcher` and `reading` are at the same place; owns both from now on."""
        self._matcher = matcher
        self._reading = reading
        self._tokens = tokens
        self._at_rest = matcher
        """Matcher at the last place where the text was free."""
        self._places: list[object] = []
        """Places of the reading at that point."""
        self._harmless: bytes | None = None
        """[V]; 1 for the tokens that change nothing here; None: all may change something."""
        if reading.texts:
            self._rest()

    def copy(self) -> FreeTextMatcher:
        """Another one at the same place."""
        return FreeTextMatcher(self._matcher.copy(), self._reading.copy(), self._tokens)

    @property
    def mask(self) -> NDArray[np.int32]:
        """As a `GrammarMatcher` has it; the same array as long as nothing changes."""
        return self._matcher.mask

    def advance(self, token_ids: list[int]) -> None:
        """As that of a `GrammarMatcher`. A token that changes nothing is not checked."""
        taken, reading = list[int](), self._reading
        for token_id in token_ids:
            if self._harmless is not None and self._harmless[token_id]:
                continue
            taken.append(token_id)
            if reading.is_lost:
                continue
            reading.read(self._tokens.of(token_id), self._tokens.is_special(token_id))
            if not reading.texts:
                self._harmless = None
                continue
            if self._is_back():
                self._matcher = self._at_rest
            else:
                self._take_in(taken)
            self._rest()
            taken.clear()
        if taken:
            self._take_in(taken)

    def is_calm(self, token_ids: list[int]) -> bool:
        """As `Matcher` says: in a free text, where none of these changes anything."""
        harmless = self._harmless
        return harmless is not None and all(harmless[token_id] for token_id in token_ids)

    def _take_in(self, token_ids: list[int]) -> None:
        if self._matcher is self._at_rest and not self._reading.is_lost:
            self._matcher = self._at_rest.copy()
        self._matcher.advance(token_ids)

    def _is_back(self) -> bool:
        """Whether the text is free as it was last: what came between has no effect."""
        return [*map(id, self._reading.places)] == [*map(id, self._places)]

    def _rest(self) -> None:
        """The text is free here."""
        self._at_rest, self._places = self._matcher, [*self._reading.places]
        self._harmless = self._tokens.harmless(first_bytes(self._reading.texts))


def free_text_matcher(
    matcher: GrammarMatcher, tag: Mapping[str, Any], added: AddedTokens, tokens: TokenTexts
) -> Matcher:
    """`matcher`: at the beginning of the grammar of this structural tag. Returns it unchanged if
    the tag has no free text, or none that can be distinguished from the text around it."""
    try:
        ways = first_ways(tag, added)
        texts = texts_among(ways)
        for text in texts[:_MOST_PREPARED]:
            tokens.harmless(first_bytes([text]))
        reading = Reading(ways)
    except GrammarError:  # an expression that works only within the grammar
        return matcher
    return matcher if reading.is_lost or not texts else FreeTextMatcher(matcher, reading, tokens)
