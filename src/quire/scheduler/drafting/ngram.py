"""`NgramProposer`: prompt lookup. A text that repeats itself is guessed to go on as before.

Source: https://github.com/apoorvumang/prompt-lookup-decoding; the index grows with the text instead
of being searched anew in each step.
"""

from __future__ import annotations

from quire.scheduler.drafting.ngram_index import NgramIndex, continuation
from quire.scheduler.drafting.proposer import Proposal, Proposer
from quire.scheduler.request import Request

_GRADES = (5, 9, 17)
"""Shortest matches of the grades above 0."""
_TOKENS_PER_MATCHED = 2
"""Longest draft for each token that agrees."""


class NgramProposer(Proposer):
    """Keeps an index of each request's own tokens."""

    def __init__(self, prompt_lookup_min: int) -> None:
        """`prompt_lookup_min`: the shortest match."""
        self._least = prompt_lookup_min
        self._indexes: dict[Request, NgramIndex] = {}

    def propose(self, request: Request, most: int) -> Proposal | None:
        """The continuation of the longest match, longer where more tokens agree."""
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = NgramIndex(self._least)
        token_ids = request.token_ids
        index.extend(token_ids)
        match = index.longest_match(token_ids)
        if match is None:
            return None
        count = min(most, _TOKENS_PER_MATCHED * match.length)
        grade = sum(match.length >= shortest for shortest in _GRADES)
        return Proposal(continuation(token_ids, match.place, count), grade)

    def forget(self, request: Request) -> None:
        """Drops the index."""
        self._indexes.pop(request, None)
