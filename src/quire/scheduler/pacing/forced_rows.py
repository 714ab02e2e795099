"""`ForcedRows`: how many forced tokens of grammars a step computes next to other requests.

Kept by `StepPacing`. A forced token is known before it is computed, so a request may compute
several in one step: it needs fewer steps then, but all requests of such a step wait longer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter

from quire.scheduler.pacing.step_costs import StepCosts
from quire.scheduler.request import Request

_by_number = attrgetter("number")


class ForcedRows:
    """Distributes rows for forced tokens among requests.

    If all requests of a step have a grammar, there is no limit, because all of them may benefit.
    If others generate too, forced tokens may delay these only a little: each request gets its one
    token of a step, and a few further rows go round-robin to the requests with forced tokens.
    """

    def __init__(self) -> None:
        self._having: set[Request] = set()
        """Unfinished requests whose grammars have forced tokens at least once."""
        self._allowance = 0.0
        """Further rows that were allowed in earlier steps and not used."""
        self._last_served = -1
        """Number of the request that got the last further row."""

    @property
    def is_used(self) -> bool:
        """Whether there is a request whose grammar has forced tokens."""
        return bool(self._having)

    def add(self, request: Request) -> None:
        """The request's grammar has forced tokens."""
        self._having.add(request)

    def forget(self, request: Request) -> None:
        """The request is finished."""
        self._having.discard(request)

    def shares(
        self, generating: Sequence[Request], costs: StepCosts
    ) -> Mapping[Request, int] | None:
        """How many tokens more than one each request may compute in the next step; 0 if it is not
        in the mapping. None: no limit."""
        if all(request.has_grammar for request in generating):
            return None
        left = {
            request: count - 1
            for request in generating
            if (count := request.num_tokens - request.num_computed_tokens) > 1
        }
        if not left:
            return None
        allowed = costs.further_rows(len(generating))
        self._allowance = min(self._allowance + allowed, max(1.0, allowed))
        return self._hand_out(left)

    def _hand_out(self, left: dict[Request, int]) -> Mapping[Request, int]:
        """Hands out tokens round-robin, starting after the request that was served last."""
        shares: dict[Request, int] = {}
        order = sorted(left, key=_by_number)
        place = bisect_right(order, self._last_served, key=_by_number)
        order = [*order[place:], *order[:place]]
        while order and self._allowance >= 1.0:
            request = order.pop(0)
            shares[request] = shares.get(request, 0) + 1
            self._allowance -= 1.0
            self._last_served = request.number
            if shares[request] < left[request]:
                order.append(request)
        return shares
