"""`Follower`: how far a request has come in its grammar, and what it may choose there.

Made by the `StructuredOutputManager`. One thread at a time has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import thread_time

import numpy as np
from numpy.typing import NDArray

from quire.errors import GrammarError, IntegrityError
from quire.reasoning.marks import ReasoningPassage
from quire.structured.compile import CompiledGrammar
from quire.structured.limits import FAIR_TOKEN_S, MAX_TRIAL_S, check_work
from quire.structured.matcher import GrammarMatcher, MatcherAfterReasoning, only_token, without

_MOST_FORCED = 32
"""Maximum number of forced tokens found at once, so that a grammar with one long text does not
delay the next step."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tokens that a request may choose next."""

    mask: NDArray[np.int32] | None
    """Mask from which this choice was built; None: all tokens are allowed."""
    bits: bytes | None = None
    """Bits of the allowed tokens; None: all tokens are allowed."""
    only: int | None = None
    """The only allowed token; None if not exactly one is allowed."""


class Follower:
    """A request's place in its grammar: nowhere before `begin`."""

    def __init__(
        self,
        *,
        ignore_eos: bool = False,
        passage: ReasoningPassage | None = None,
        begun: Sequence[int] = (),
    ) -> None:
        """Arguments: see `StructuredOutputManager.add`."""
        self._ignores_eos = ignore_eos
        self._passage = passage
        self._begun = [*begun]
        self._grammar: CompiledGrammar | None = None
        self._matcher: GrammarMatcher | MatcherAfterReasoning | None = None
        self._choice = Choice(None)
        self._forced: list[int] = []
        """The next tokens, where the grammar allows no others."""
        self._ahead: list[bytes] = []
        """Masks after tokens that may come; see `look_ahead`."""
        self._excess_s = 0.0
        """Processor time beyond what its tokens may take for ever; calm tokens give it back."""

    @property
    def is_slow(self) -> bool:
        """Whether its grammar has taken long before."""
        return self._grammar is not None and self._grammar.is_slow

    def begin(self, grammar: CompiledGrammar) -> None:
        """Starts at the beginning of the text, or after the part that exists already. Raises as
        `follow` does."""
        self._grammar = grammar
        began_at = thread_time()
        matcher = grammar.start.copy()
        self._matcher = matcher
        if self._passage is not None:
            self._matcher = MatcherAfterReasoning(matcher, self._passage)
        if self._begun:
            self._matcher.advance(self._begun)
        self._choose()
        self._charge(thread_time() - began_at, len(self._begun) + 1)

    def choice(self) -> Choice:
        """The tokens that the request may choose next."""
        return self._choice

    def look_ahead(self, token_ids: Sequence[int]) -> list[int]:
        """The next tokens where the grammar allows no others; otherwise those of `token_ids` that
        it allows one after the other, before any that could end the text. Keeps the masks after
        each, for `masks`."""
        if self._forced or not token_ids:
            return self._forced
        self._ahead = []
        here, choice = self._copy(), self._choice
        for token_id in token_ids:
            if here is None or choice.bits is None or not _allows(choice.bits, token_id):
                break
            choice = self._choice_after(here, token_id)
            if choice.bits is None:
                break
            self._ahead.append(choice.bits)
        return [*token_ids[: len(self._ahead)]]

    def _find_forced(self) -> None:
        """Finds the next tokens where the grammar allows no others, up to the end of the text, and
        the masks after them."""
        self._forced, self._ahead = [], []
        choice = self._choice
        here = None if choice.only is None else self._copy()
        while here is not None and choice.only is not None and len(self._forced) < _MOST_FORCED:
            token_id = choice.only
            choice = self._choice_after(here, token_id)
            if choice.bits is None:
                break
            self._forced.append(token_id)
            self._ahead.append(choice.bits)

    def _copy(self) -> GrammarMatcher | None:
        """A copy of the matcher; None before the grammar begins."""
        here = self._begun_matcher()
        return here.fork() if isinstance(here, MatcherAfterReasoning) else here.copy()

    def _choice_after(self, matcher: GrammarMatcher, token_id: int) -> Choice:
        """Advances a copy of the matcher. Without bits if the text may end with the token."""
        if self._grammar is None or token_id in self._grammar.eos_token_ids:
            return Choice(None)
        try:
            matcher.advance([token_id])
        except (GrammarError, IntegrityError):
            return Choice(None)
        return self._choice_of(matcher.mask)

    def masks(self, num_ahead: int) -> bytes | None:
        """The bits of what it may choose next, and after each of the first `num_ahead` tokens of
        the last `look_ahead`. None: every token."""
        bits = self._choice.bits
        if not num_ahead or bits is None:
            return bits
        return b"".join([bits, *self._ahead[:num_ahead]])

    def is_calm(self, token_ids: list[int]) -> bool:
        """Whether taking these in costs nothing, and they change nothing."""
        here = self._begun_matcher()
        return isinstance(here, MatcherAfterReasoning) and here.is_calm(token_ids)

    def follow(self, token_ids: list[int]) -> None:
        """Takes in the request's next tokens. Raises as a matcher's `advance` does, and
        GrammarError for a grammar that takes too much to follow."""
        began_at = thread_time()
        self._begun_matcher().advance(token_ids)
        self._choose()
        self._find_forced()
        self._charge(thread_time() - began_at, len(token_ids) + len(self._forced))

    def _begun_matcher(self) -> GrammarMatcher | MatcherAfterReasoning:
        if self._matcher is None:
            raise IntegrityError("a request goes on before its grammar is compiled")
        return self._matcher

    def _choose(self) -> None:
        """Costs nothing while the mask stays the same."""
        mask = self._begun_matcher().mask
        if mask is not self._choice.mask:
            self._choice = self._choice_of(mask)

    def _choice_of(self, mask: NDArray[np.int32] | None) -> Choice:
        """With end-of-sequence tokens that the request ignores only where nothing else may come."""
        if mask is None:
            return Choice(None)
        left = mask
        if self._ignores_eos and self._grammar is not None:
            left = without(mask, self._grammar.eos_token_ids)
            left = left if left.any() else mask
        return Choice(mask, left.tobytes(), only_token(left))

    def _charge(self, seconds: float, num_tokens: int) -> None:
        """Counts the time that tokens took: others have less of the processor meanwhile."""
        if self._grammar is None:
            return
        if seconds > FAIR_TOKEN_S * num_tokens:
            self._grammar.is_slow = True
        self._excess_s = max(0.0, self._excess_s + seconds - FAIR_TOKEN_S * num_tokens)
        check_work(MAX_TRIAL_S + self._grammar.compile_s + self._excess_s)


def _allows(bits: bytes, token_id: int) -> bool:
    byte, bit = divmod(token_id, 8)
    return byte < len(bits) and bool(bits[byte] >> bit & 1)
