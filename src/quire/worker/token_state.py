"""Per-token sampling settings of a request at each step: which tokens are allowed, what is added to
their logits, how often each was generated.

Kept by `SamplingRows` for rows whose requests have such settings, and rebuilt from a request's
tokens when it starts again. No state but `Timestamps` has the length of the vocabulary, unless the
request lists that many tokens.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter, deque
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.protocol.input_rows import token_ids_without
from quire.reasoning.marks import ReasoningPassage, ReasoningTokens
from quire.sampling.masks import MASK_BITS
from quire.sampling.word_endings import WordEndings
from quire.timestamp_rules import TimestampRules
from quire.units import round_up

if TYPE_CHECKING:
    from quire.protocol import ScheduledRequest

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Words = NDArray[np.uint32]


class TokenState(ABC):
    """One list of `TokenLists`, for one request."""

    __slots__ = ()

    @abstractmethod
    def tokens(
        self, num_tokens: int, mask: Words | None = None
    ) -> tuple[Ints, Floats | None] | None:
        """The token ids and their values when the request has `num_tokens` tokens. None: the list
        is empty now and stays empty. `mask`: bits of the tokens that a grammar allows, if there is
        a grammar."""

    def append(self, token_id: int) -> None:  # noqa: B027 (most do not need it)
        """Takes in the request's next token."""

    def fork(self) -> TokenState:
        """An independent copy of the state."""
        return copy.copy(self)


class FixedTokens(TokenState):
    """The same tokens at every step."""

    __slots__ = ("_ids",)

    def __init__(self, ids: list[int]) -> None:
        self._ids = np.array(ids, np.int32)

    def tokens(
        self,
        num_tokens: int,  # noqa: ARG002 (at every step)
        mask: Words | None = None,  # noqa: ARG002
    ) -> tuple[Ints, None]:
        return self._ids, None


class TokenBias(TokenState):
    """`logit_bias`; tokens that are banned until `min_tokens` or by the model at the begin of a
    reply, unless a grammar allows nothing else; and tokens that would complete a word: a bad word
    of the request, within the reply; one of the model's, also within the prompt."""

    __slots__ = ("_always", "_bad_words", "_bans", "_never")

    def __init__(self, request: ScheduledRequest) -> None:
        params = request.sampling_params
        words = params.bad_words_token_ids or []
        bias = params.logit_bias or {}
        never = params.never_generated
        banned = [word[0] for word in (*words, *never.words) if len(word) == 1]
        self._always = (
            np.array([*bias, *banned], np.int32),
            np.array([*bias.values(), *[-np.inf] * len(banned)], np.float32),
        )
        bans = [(params.min_tokens, request.banned_token_ids), *never.first]
        self._bans = [
            (request.num_prompt_tokens + until, np.array(ids, np.int32)) for until, ids in bans
        ]
        self._bad_words = _BadWords(words, request.token_ids[request.num_prompt_tokens :])
        self._never = _BadWords(never.words, request.token_ids)

    def tokens(self, num_tokens: int, mask: Words | None = None) -> tuple[Ints, Floats] | None:
        ids, values = self._always
        self._bans = [one for one in self._bans if num_tokens < one[0]]
        ban = np.concatenate([_NO_TOKENS, *(one for _, one in self._bans)])
        if mask is not None and len(ban) and not _allows_others(mask, ban):
            ban = ban[:0]
        bad = self._bad_words.endings() + self._never.endings()
        if len(ban) or bad:
            banned = np.concatenate([ban, np.array(bad, np.int32)])
            ids = np.concatenate([ids, banned])
            values = np.concatenate([values, np.full(len(banned), -np.inf, np.float32)])
        lasts = self._bans or self._bad_words.any() or self._never.any()
        return (ids, values) if len(ids) or lasts else None

    def append(self, token_id: int) -> None:
        self._bad_words.append(token_id)
        self._never.append(token_id)

    def fork(self) -> TokenBias:
        twin = copy.copy(self)
        # Shallow copies suffice: `append` replaces the list.
        twin._bad_words, twin._never = copy.copy(self._bad_words), copy.copy(self._never)
        return twin


class SeenTokens(TokenState):
    """Counts of each distinct token that the request generated. Tokens that are only in the prompt
    have count 0, and are included only if there is a repetition penalty."""

    __slots__ = ("_counts", "_ids", "_place_of")

    def __init__(self, request: ScheduledRequest) -> None:
        num_prompt = request.num_prompt_tokens
        has_prompt = request.sampling_params.repetition_penalty != 1
        prompt = request.token_ids[:num_prompt] if has_prompt else []
        if has_prompt and request.input_rows:
            prompt = token_ids_without(prompt, request.input_rows)
        counts: dict[int, int] = dict.fromkeys(prompt, 0)
        for token_id in request.token_ids[num_prompt:]:
            counts[token_id] = counts.get(token_id, 0) + 1
        self._place_of = {token_id: place for place, token_id in enumerate(counts)}
        self._ids = np.fromiter(counts, np.int32, len(counts))
        self._counts = np.fromiter(counts.values(), np.float32, len(counts))

    def tokens(
        self,
        num_tokens: int,  # noqa: ARG002 (`append` counts)
        mask: Words | None = None,  # noqa: ARG002
    ) -> tuple[Ints, Floats]:
        size = len(self._place_of)
        return self._ids[:size], self._counts[:size]

    def append(self, token_id: int) -> None:
        size = len(self._place_of)
        place = self._place_of.setdefault(token_id, size)
        if place == len(self._ids):
            room = max(_LEAST_ROOM, size)
            self._ids = np.concatenate([self._ids, np.zeros(room, np.int32)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._ids[place] = token_id
        self._counts[place] += 1

    def fork(self) -> SeenTokens:
        twin = copy.copy(self)
        twin._ids, twin._counts = self._ids.copy(), self._counts.copy()
        twin._place_of = self._place_of.copy()
        return twin


class RecentTokens(TokenState):
    """Counts of each distinct token among the last `repeat_last_n`, of the prompt or not."""

    __slots__ = ("_counts", "_last")

    def __init__(self, request: ScheduledRequest) -> None:
        size = request.sampling_params.repeat_last_n or 0
        token_ids = request.token_ids
        if request.input_rows:
            token_ids = token_ids_without(token_ids, request.input_rows)
        self._last = deque(token_ids, size if size >= 0 else None)
        self._counts = Counter(self._last)

    def tokens(
        self,
        num_tokens: int,  # noqa: ARG002 (`append` counts)
        mask: Words | None = None,  # noqa: ARG002
    ) -> tuple[Ints, Floats]:
        counts = self._counts
        ids = np.fromiter(counts, np.int32, len(counts))
        return ids, np.fromiter(counts.values(), np.float32, len(counts))

    def append(self, token_id: int) -> None:
        if len(self._last) == self._last.maxlen:
            oldest = self._last[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last.append(token_id)
        self._counts[token_id] += 1

    def fork(self) -> RecentTokens:
        twin = copy.copy(self)
        twin._last, twin._counts = self._last.copy(), self._counts.copy()
        return twin


class ThinkingBudget:
    """`thinking_token_budget`: forces the tokens that end the reasoning when the budget is used
    up."""

    __slots__ = ("_budget", "_passage")

    def __init__(self, request: ScheduledRequest, marks: ReasoningTokens) -> None:
        self._budget = request.sampling_params.thinking_token_budget or 0
        self._passage = ReasoningPassage(marks, request.token_ids, request.num_prompt_tokens)

    def append(self, token_id: int) -> None:
        """Takes in the request's next token."""
        self._passage.extend((token_id,))

    def fork(self) -> ThinkingBudget:
        """An independent copy of the budget."""
        twin = copy.copy(self)
        twin._passage = self._passage.fork()
        return twin

    def forced(self) -> int | None:
        """The token that comes next, whatever the logits are; None: one is chosen."""
        return self._passage.forced(self._budget)


class TokenTrace:
    """`trace_decode_token_ids`: forces these tokens, one after the other."""

    __slots__ = ("_next", "_token_ids")

    def __init__(self, request: ScheduledRequest) -> None:
        self._token_ids = request.sampling_params.trace_decode_token_ids or []
        self._next = len(request.token_ids) - request.num_prompt_tokens

    def append(self, _token_id: int) -> None:
        """Takes in the request's next token."""
        self._next += 1

    def fork(self) -> TokenTrace:
        """An independent copy of the trace."""
        return copy.copy(self)

    def forced(self) -> int | None:
        """The token that comes next, whatever the logits are; None: one is chosen."""
        return self._token_ids[self._next] if self._next < len(self._token_ids) else None


_LEAST_ROOM = 64
_NO_TOKENS = np.empty(0, np.int32)


def _allows_others(mask: Words, ids: Ints) -> bool:
    """Whether a mask allows a token other than these."""
    words = mask.copy()
    for token_id in ids.tolist():
        if token_id // MASK_BITS < len(words):
            words[token_id // MASK_BITS] &= ~np.uint32(1 << token_id % MASK_BITS)
    return bool(words.any())


class _BadWords:
    """Words of two or more tokens, and the last tokens before the next one."""

    __slots__ = ("_tail", "_words")

    def __init__(self, words: list[list[int]], tokens: list[int]) -> None:
        self._words = WordEndings(words)
        self._tail = tokens[max(0, len(tokens) - self._words.longest) :]

    def any(self) -> bool:
        """Whether there are words."""
        return self._words.longest > 0

    def append(self, token_id: int) -> None:
        """Adds the next token."""
        if self._words.longest:
            self._tail = [*self._tail, token_id][-self._words.longest :]

    def endings(self) -> list[int]:
        """The tokens that would complete a word."""
        return self._words.after(self._tail)


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
