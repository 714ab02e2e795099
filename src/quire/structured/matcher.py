"""`GrammarMatcher`: how far one request has come in its grammar, and which tokens may follow.

Copied from a `CompiledGrammar` by a `Follower`; the mask is a function of the grammar and the
request's own tokens alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.errors import GrammarError, IntegrityError
from quire.reasoning.marks import ReasoningPassage
from quire.units import ceil_div

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MASK_BITS = 32
_FORBIDDEN = "doesn't satisfy the grammar"
"""In the library's message about a token that was forbidden; others are about its limits."""
_END_OF_ERROR = "<non-verbose/>"
_NO_TEXT = "NoExtension"
"""First words of the library's messages when no token may follow."""


class GrammarMatcher:
    """Holds the mask of the next token from its start on, so that what goes wrong does so between
    two steps."""

    __slots__ = ("_matcher", "mask")

    def __init__(self, matcher: LLMatcher, mask: NDArray[np.int32]) -> None:
        """Owns both from now on."""
        self._matcher = matcher
        self.mask = mask
        """[W] words of 32 bits: bit t % 32 of word t // 32 is set if token t is allowed."""

    @classmethod
    def start(cls, matcher: LLMatcher, vocab_size: int) -> GrammarMatcher:
        """At the begin of a grammar. Raises GrammarError as `advance` does."""
        return cls(matcher, _compute_mask(matcher, ceil_div(vocab_size, _MASK_BITS)))

    def copy(self) -> GrammarMatcher:
        """Another one at the same place."""
        return GrammarMatcher(self._matcher.deep_copy(), self.mask)

    def advance(self, token_ids: list[int]) -> None:
        """Takes in the request's next tokens. Raises GrammarError where that or the next mask takes
        more than the limits, and IntegrityError for a token that its mask forbade; it is of no use
        then. After the end of the text only end-of-sequence tokens are allowed, any number of
        them."""
        if self._matcher.is_stopped():
            return
        if not self._matcher.consume_tokens(token_ids):
            message = error_of(self._matcher)
            if _FORBIDDEN in message:
                raise IntegrityError(f"the grammar refuses a token: {message}")
            raise _too_much(message)
        self.mask = _compute_mask(self._matcher, len(self.mask))


class MatcherAfterReasoning:
    """Begins a grammar where the reasoning ends; within the reasoning every token is allowed.

    At its begin, if the prompt neither opens nor closes the reasoning, a reply may begin with the
    reasoning or with what the grammar allows.
    """

    __slots__ = ("_ahead", "_begin", "_matcher", "_passage")

    def __init__(self, matcher: GrammarMatcher, passage: ReasoningPassage) -> None:
        """`matcher` is at the begin of the grammar, `passage` at the end of the prompt."""
        self._matcher = matcher
        self._passage: ReasoningPassage | None = passage
        """None: the answer has begun."""
        self._begin = [] if passage.is_open else passage.marks.begin
        """Rest of the mark that begins the reasoning, while the reasoning may still begin."""
        self._ahead: GrammarMatcher | None = matcher
        """Behind what was generated of the begin; None: the grammar does not allow that."""
        if passage.marks.is_closed:
            self._passage = None
        elif len(self._begin) > 1:
            self._ahead = matcher.copy()

    @property
    def mask(self) -> NDArray[np.int32] | None:
        """Mask of the next token; None: every token is allowed."""
        if self._passage is None:
            return self._matcher.mask
        if not self._begin:
            return None
        if self._ahead is None:
            bits = np.zeros_like(self._matcher.mask.view(np.uint32))
        else:
            bits = self._ahead.mask.view(np.uint32).copy()
        word, bit = divmod(self._begin[0], _MASK_BITS)
        bits[word] |= np.uint32(1 << bit)
        mask: NDArray[np.int32] = bits.view(np.int32)
        return mask

    def advance(self, token_ids: list[int]) -> None:
        """Add the next tokens, as `GrammarMatcher.advance` does."""
        for place, token_id in enumerate(token_ids):
            if self._passage is None:
                self._matcher.advance(token_ids[place:])
                return
            self._advance_before_answer(self._passage, token_id)

    def fork(self) -> GrammarMatcher | None:
        """The matcher of the answer; None before it has begun."""
        return self._matcher.copy() if self._passage is None else None

    def is_calm(self, token_ids: list[int]) -> bool:
        """Whether `advance` by these does not ask the grammar: within the reasoning, where the
        answer cannot begin yet."""
        return self._passage is not None and not self._begin and len(token_ids) == 1

    def _advance_before_answer(self, passage: ReasoningPassage, token_id: int) -> None:
        passage.extend((token_id,))
        if passage.is_open:
            self._begin = []
        elif not self._begin:
            self._passage = None
        elif token_id == self._begin[0]:
            self._begin = self._begin[1:]
            self._try_ahead(token_id)
        else:
            if self._ahead is None:
                raise IntegrityError("a token was forbidden: it does not begin the reasoning")
            self._matcher, self._passage = self._ahead, None
            self._matcher.advance([token_id])

    def _try_ahead(self, token_id: int) -> None:
        try:
            if self._ahead is not None:
                self._ahead.advance([token_id])
        except (GrammarError, IntegrityError):
            self._ahead = None


def only_token(mask: NDArray[np.int32]) -> int | None:
    """The one token that a mask allows; None if it allows others, or none."""
    bits = mask.view(np.uint32)
    if np.count_nonzero(bits) != 1:
        return None
    place = int(bits.argmax())
    word = int(bits[place])
    if word & (word - 1):
        return None
    return place * _MASK_BITS + word.bit_length() - 1


def error_of(matcher: LLMatcher) -> str:
    """Description of a matcher's error."""
    message = matcher.get_error().removesuffix(_END_OF_ERROR).strip()
    return "no text matches it" if message.startswith(_NO_TEXT) else message


def without(mask: NDArray[np.int32], token_ids: tuple[int, ...]) -> NDArray[np.int32]:
    """A copy of a mask that leaves these tokens out."""
    bits = mask.view(np.uint32).copy()
    for token_id in token_ids:
        bits[token_id // _MASK_BITS] &= ~np.uint32(1 << token_id % _MASK_BITS)
    left: NDArray[np.int32] = bits.view(np.int32)
    return left


def _too_much(message: str) -> GrammarError:
    return GrammarError(f"the grammar takes too much to follow: {message}")


def _compute_mask(matcher: LLMatcher, num_words: int) -> NDArray[np.int32]:
    from llguidance.numpy import fill_next_token_bitmask

    mask = np.empty((1, num_words), np.int32)
    fill_next_token_bitmask(matcher, mask)
    if matcher.is_error():
        if matcher.get_error().startswith(_NO_TEXT):
            raise GrammarError("no text that begins like this output matches the grammar")
        raise _too_much(error_of(matcher))
    row: NDArray[np.int32] = mask.reshape(num_words)
    return row
