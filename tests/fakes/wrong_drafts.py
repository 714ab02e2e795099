"""Proposers whose drafts are wrong, always or now and then. The model has 256 tokens."""

from __future__ import annotations

import random

from quire.scheduler.drafting.proposer import NUM_GRADES, Proposal, Proposer
from quire.scheduler.request import Request

VOCABULARY = 256


class Liar(Proposer):
    """Guesses at random, sometimes what a reply repeats, and always with the highest grade."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self.num_proposals = 0

    def propose(self, request: Request, most: int) -> Proposal | None:
        count = self._random.randint(0, min(most, 9))
        if not count:
            return None
        self.num_proposals += 1
        ids = [self._random.randrange(VOCABULARY) for _ in range(count)]
        if self._random.random() < 0.5:
            ids = [request.token_ids[-1]] * count
        return Proposal(ids, self._random.randrange(NUM_GRADES))

    def forget(self, request: Request) -> None:
        pass


class Oracle(Proposer):
    """Knows the replies by their seeds, and lies now and then."""

    def __init__(self, replies: dict[int, list[int]]) -> None:
        self._replies = replies
        self._random = random.Random(2)
        self.num_right = 0

    def propose(self, request: Request, most: int) -> Proposal | None:
        seed = request.sampling_params.seed
        assert seed is not None
        done = request.num_output_tokens
        ids = self._replies[seed][done : done + min(most, 5)]
        if self._random.random() < 0.3:
            ids[-1:] = [self._random.randrange(VOCABULARY)]
        elif ids:
            self.num_right += 1
        return Proposal(ids, NUM_GRADES - 1) if ids else None

    def forget(self, request: Request) -> None:
        pass
