"""`NgramProposer`: prompt lookup. A text that repeats itself is guessed to go on as before.

Source: https://github.com/apoorvumang/prompt-lookup-decoding; `NgramIndex` finds where the last
tokens of a text occurred earlier; it grows with the text instead of being searched anew in each
step. A reply that the client predicts is a part of the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from quire.scheduler.drafting.proposer import PREDICTED, Proposal, Proposer
from quire.scheduler.request import Request

_MOST_CANDIDATES = 16
"""Number of earlier places that are compared, the newest first."""
_LONGEST_MATCH = 32
"""Matches of this length and more count as equally long."""


class Match(NamedTuple):
    """An earlier place at which the text was the same as at its end."""

    place: int
    """Index of the token that followed there."""
    length: int
    """Number of equal tokens, at most 32."""


class NgramIndex:
    """Indexes every n consecutive tokens of a text that only grows.

    A token costs O(1) time, whatever the length of the text. The text itself stays with its owner.
    """

    __slots__ = ("_earlier", "_n", "_newest", "_num_indexed")

    def __init__(self, n: int) -> None:
        """`n`: the shortest match."""
        self._n = n
        self._newest: dict[int, int] = {}
        """By the hash of n tokens, the place after their newest occurrence."""
        self._earlier = array("i", [0]) * n
        """By place, the place after the occurrence before; 0 if there is none."""
        self._num_indexed = n
        """Places below this one are indexed."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Indexes the text. Its end is a place only when another token follows."""
        n, newest, earlier = self._n, self._newest, self._earlier
        first = self._num_indexed
        grams = zip(*(token_ids[first - n + i :] for i in range(n)), strict=False)
        for place, gram in zip(range(first, len(token_ids)), grams, strict=False):
            key = hash(gram)
            earlier.append(newest.get(key, 0))
            newest[key] = place
        self._num_indexed = max(first, len(token_ids))

    def longest_match(self, token_ids: Sequence[int], query: Sequence[int]) -> Match | None:
        """The longest match of the end of `query` in the indexed text `token_ids` among the newest
        ones; of equal ones the newest. None if the last n tokens do not occur, or only at the end
        of the text. `query` may be the text itself."""
        n, end = self._n, len(query)
        place = self._newest.get(hash(tuple(query[end - n :])), 0) if end >= n else 0
        best, best_length = 0, n - 1
        for _ in range(_MOST_CANDIDATES):
            if not place:
                break
            length = _num_equal(token_ids, place, query)
            if length > best_length:
                best, best_length = place, length
                if length == _LONGEST_MATCH:
                    break
            place = self._earlier[place]
        return Match(best, best_length) if best else None


_GRADES = (5, 9, 17)
"""Shortest matches of the grades above 0."""


def grade_of(match_length: int) -> int:
    """The grade of a guess before which so many tokens agree with an earlier text."""
    return sum(match_length >= shortest for shortest in _GRADES)


def _num_equal(token_ids: Sequence[int], place: int, query: Sequence[int]) -> int:
    """Number of tokens before `place` that equal the last ones of `query`."""
    most, end = min(place, len(query), _LONGEST_MATCH), len(query)
    for length in range(most):
        if token_ids[place - 1 - length] != query[end - 1 - length]:
            return length
    return most


def continuation(token_ids: Sequence[int], place: int, count: int) -> list[int]:
    """The next `count` tokens if the text goes on as it did from `place`: where it reaches its own
    end, it repeats the part from `place` on."""
    period = len(token_ids) - place
    if count <= period:
        return list(token_ids[place : place + count])
    return [token_ids[place + i % period] for i in range(count)]


_TOKENS_PER_MATCHED = 4
"""Longest draft for each token that agrees."""


class _Text:
    """The tokens in which drafts of one request are searched: its prompt, the predicted reply, its
    reply."""

    __slots__ = ("index", "prediction", "token_ids")

    def __init__(self, request: Request, least: int) -> None:
        predicted, end = request.predicted_token_ids, request.num_prompt_tokens
        self.index = NgramIndex(least)
        self.token_ids = request.token_ids
        """The request's own list, unless a prediction lies between prompt and reply."""
        self.prediction = range(end, end + len(predicted))
        if predicted:
            self.token_ids = request.token_ids[:end] + predicted

    def grow(self, request: Request) -> None:
        """Adds the tokens that the request has generated since the last call."""
        if self.prediction:
            self.token_ids += request.token_ids[len(self.token_ids) - len(self.prediction) :]
        self.index.extend(self.token_ids)


class NgramProposer(Proposer):
    """Keeps an index of each request's own tokens."""

    def __init__(self, prompt_lookup_min: int) -> None:
        """`prompt_lookup_min`: the shortest match."""
        self._least = prompt_lookup_min
        self._texts: dict[Request, _Text] = {}

    def propose(self, request: Request, most: int) -> Proposal | None:
        """The continuation of the longest match, longer where more tokens agree."""
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = _Text(request, self._least)
        text.grow(request)
        if text.prediction and request.num_output_tokens < self._least:
            return _beginning(request, most)
        match = text.index.longest_match(text.token_ids, text.token_ids)
        if match is None:
            return None
        if match.place in text.prediction:
            end = min(match.place + most, text.prediction.stop)
            return Proposal(text.token_ids[match.place : end], PREDICTED)
        count = min(most, _TOKENS_PER_MATCHED * match.length)
        return Proposal(continuation(text.token_ids, match.place, count), grade_of(match.length))

    def forget(self, request: Request) -> None:
        self._texts.pop(request, None)


def _beginning(request: Request, most: int) -> Proposal | None:
    """The predicted reply, while the reply is too short to be looked up and agrees with it."""
    predicted, done = request.predicted_token_ids, request.num_output_tokens
    if done >= len(predicted) or request.token_ids[request.num_prompt_tokens :] != predicted[:done]:
        return None
    return Proposal(predicted[done : done + most], PREDICTED)
