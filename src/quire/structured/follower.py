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
from quire.reasoning.passage import ReasoningPassage
from quire.structured.compile import CompiledGrammar
from quire.structured.limits import FAIR_TOKEN_S, MAX_TRIAL_S, check_work
from quire.structured.matcher import Matcher, MatcherAfterReasoning, only_token, without

_MOST_FORCED = 32
"""Tokens at once, so that a grammar with one long text does not keep the next step waiting."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request may choose."""

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
        may_force: bool = False,
        passage: ReasoningPassage | None = None,
        begun: Sequence[int] = (),
    ) -> None:
        """As `StructuredOutputManager.add` says."""
        self._ignores_eos = ignore_eos
        self._may_force = may_force
        self._passage = passage
        self._begun = [*begun]
        self._grammar: CompiledGrammar | None = None
        self._matcher: Matcher | MatcherAfterReasoning | None = None
        self._choice = Choice(None)
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
        """What it may choose next."""
        return self._choice

    def look_ahead(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens the grammar allows one after the other, before any that could
        end the text. Keeps the masks after each, for `masks`."""
        self._ahead = []
        here, bits, grammar = self._begun_matcher(), self._choice.bits, self._grammar
        matcher = here.fork() if isinstance(here, MatcherAfterReasoning) else here.copy()
        if matcher is None or grammar is None:
            return 0
        for token_id in token_ids:
            is_end = token_id in grammar.eos_token_ids
            if bits is None or is_end or not _allows(bits, token_id):
                break
            try:
                matcher.advance([token_id])
            except (GrammarError, IntegrityError):
                break
            bits = self._choice_of(matcher.mask).bits
            if bits is not None:
                self._ahead.append(bits)
        return len(self._ahead)

    def masks(self, num_ahead: int) -> bytes | None:
        """The bits of what it may choose next, and after each of the first `num_ahead` tokens of
        the last `look_ahead`. None: every token."""
        bits = self._choice.bits
        if not num_ahead or bits is None:
            return bits
        return b"".join([bits, *self._ahead[:num_ahead]])

    def is_calm(self, token_ids: list[int]) -> bool:
        """Whether taking these in costs nothing, and they change nothing."""
        return self._begun_matcher().is_calm(token_ids)

    def follow(self, token_ids: list[int], most: int) -> list[int]:
        """Takes in the request's next tokens. Returns those that must follow, because no others are
        allowed: at most `most`, and taken in too. Raises as a matcher's `advance` does, and
        GrammarError for a grammar that takes too much to follow."""
        forced = list[int]()
        self._advance(token_ids)
        while self._may_force and len(forced) < min(most, _MOST_FORCED):
            token_id = self._choice.only
            if token_id is None:
                break
            forced.append(token_id)
            if self._grammar is not None and token_id in self._grammar.eos_token_ids:
                break
            self._advance([token_id])
        return forced

    def _advance(self, token_ids: list[int]) -> None:
        """Takes tokens in, and counts the time that they take."""
        began_at = thread_time()
        self._begun_matcher().advance(token_ids)
        self._choose()
        self._charge(thread_time() - began_at, len(token_ids))

    def _begun_matcher(self) -> Matcher | MatcherAfterReasoning:
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
