"""`Timestamps`: the tokens that a request with rules for timestamps may write next."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quire.protocol import ScheduledRequest
from quire.sampling.masks import MASK_BITS
from quire.timestamp_rules import TimestampRules
from quire.units import round_up

Words = NDArray[np.uint32]


class Timestamps:
    """State of one request. The sampler does the part that depends on probabilities
    (`SamplingColumns.mass_from`)."""

    def __init__(self, request: ScheduledRequest, rules: TimestampRules, vocab_size: int) -> None:
        self._rules = rules
        self._allowed = _allowed(tuple(rules.forbidden), vocab_size)
        own = request.token_ids[request.num_prompt_tokens :]
        self._count = len(own)
        stamps = [token_id for token_id in own if token_id >= rules.first]
        self._last = stamps[-1] if stamps else -1
        """The last timestamp; -1: there is none."""
        self._lasts = own[-2:]

    def append(self, token_id: int) -> None:
        """Takes in the next token."""
        self._count += 1
        self._lasts = [*self._lasts[-1:], token_id]
        if token_id >= self._rules.first:
            self._last = token_id

    def mask(self) -> Words:
        """The allowed tokens as bits, see `TokenMasks`."""
        rules, allowed = self._rules, self._allowed.copy()
        if not self._count:
            allowed[rules.forbidden_first] = False
        if not rules.is_on:
            allowed[rules.first :] = False
        elif not self._count:
            allowed[: rules.first] = False
            if rules.most_first is not None:
                allowed[rules.first + rules.most_first + 1 :] = False
        else:
            self._restrict(allowed)
        return np.packbits(allowed, bitorder="little").view(np.uint32)

    def _restrict(self, allowed: NDArray[np.bool_]) -> None:
        """Timestamps are in pairs, except one before the end. The first of a pair is the end of a
        piece of text, and the second the beginning of the next, which may be the same time."""
        rules = self._rules
        is_stamp = [token_id >= rules.first for token_id in self._lasts]
        is_open = is_stamp[-1] and not (len(is_stamp) < 2 or is_stamp[0])
        if is_open:
            allowed[: rules.end] = False
        elif is_stamp[-1]:
            allowed[rules.first :] = False
        if self._last >= 0:
            allowed[rules.first : self._last + (not is_open)] = False


@lru_cache(maxsize=8)
def _allowed(forbidden: tuple[int, ...], vocab_size: int) -> NDArray[np.bool_]:
    """All tokens but these; the array ends with a whole word."""
    found = np.ones(round_up(vocab_size, MASK_BITS), np.bool_)
    found[list(forbidden)] = False
    return found
