"""`Proposer`: what guesses the next tokens of requests. `Drafting` calls it on the engine's thread.

A proposer may be wrong, slow to learn, or lie: that costs time and never changes a token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from quire.scheduler.request import Request

PREDICTED = 4
"""The grade of guesses that the client made."""
OF_MODEL = 2
"""The grade of what a draft model proposes."""
NUM_GRADES = 5


class Proposal(NamedTuple):
    """Guesses of a request's next tokens, in order."""

    token_ids: list[int]
    grade: int
    """Certainty of the proposer, from 0 to 3, or `PREDICTED`. Acceptance is learned by grade."""


class Proposer(ABC):
    """Guesses from the tokens of a request. Owned by the engine's thread."""

    @abstractmethod
    def propose(self, request: Request, most: int) -> Proposal | None:
        """At most `most` guesses (at least 1) of what follows `request.token_ids`, all of which are
        known; None without a guess."""

    @abstractmethod
    def forget(self, request: Request) -> None:
        """The request is finished: nothing more will be asked for it."""
