"""`NgramProposer`: prompt lookup. A text that repeats itself is guessed to go on as before.

Source: https://github.com/apoorvumang/prompt-lookup-decoding; the index grows with the text instead
of being searched anew in each step. A reply that the client predicts is a part of the text.
"""

from __future__ import annotations

from quire.scheduler.drafting.ngram_index import NgramIndex, continuation
from quire.scheduler.drafting.proposer import PREDICTED, Proposal, Proposer, grade_of
from quire.scheduler.request import Request

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
        """Drops the index."""
        self._texts.pop(request, None)


def _beginning(request: Request, most: int) -> Proposal | None:
    """The predicted reply, while the reply is too short to be looked up and agrees with it."""
    predicted, done = request.predicted_token_ids, request.num_output_tokens
    if done >= len(predicted) or request.token_ids[request.num_prompt_tokens :] != predicted[:done]:
        return None
    return Proposal(predicted[done : done + most], PREDICTED)
