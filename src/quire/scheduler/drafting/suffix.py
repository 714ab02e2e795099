"""`SuffixProposer`: prompt lookup that also searches earlier replies of the same tenant.

Agents and services send the same kinds of requests again and again, so replies repeat parts of
earlier ones. The idea is that of suffix decoding (https://arxiv.org/abs/2411.04975); a hash index
of the replies takes the place of the suffix tree. A tenant's replies are never searched for another
one: the speed of a reply would tell what the other one contains.
"""

from __future__ import annotations

from collections import OrderedDict

from quire.scheduler.drafting.ngram import NgramIndex, NgramProposer, grade_of
from quire.scheduler.drafting.proposer import Proposal, Proposer
from quire.scheduler.request import Request

_MAX_TOKENS = 1 << 19
"""Maximum number of tokens that are kept of all tenants. One takes about 150 bytes."""
_BREAK = -1
"""Follows each reply, so that no match and no draft goes from one into the next."""


class _Replies:
    """The replies of one tenant, the oldest first."""

    __slots__ = ("ends", "index", "token_ids")

    def __init__(self, least: int) -> None:
        self.token_ids: list[int] = []
        self.ends: list[int] = []
        """Index of the end of each reply."""
        self.index = NgramIndex(least)

    def add(self, reply: list[int]) -> None:
        self.token_ids += [*reply, _BREAK]
        self.ends.append(len(self.token_ids))
        self.index.extend(self.token_ids)

    def drop_older_half(self, least: int) -> None:
        """Drops the older half of the replies; the index is made anew."""
        num_dropped = (len(self.ends) + 1) // 2
        begin = self.ends[num_dropped - 1]
        self.token_ids = self.token_ids[begin:]
        self.ends = [end - begin for end in self.ends[num_dropped:]]
        self.index = NgramIndex(least)
        self.index.extend(self.token_ids)

    def next_after(self, place: int, count: int) -> list[int]:
        """At most `count` tokens from `place` on, up to the end of the reply."""
        found = self.token_ids[place : place + count]
        return found[: found.index(_BREAK)] if _BREAK in found else found


class SuffixProposer(Proposer):
    """Keeps finished replies by tenant, and an index of each request's own tokens."""

    def __init__(self, prompt_lookup_min: int, max_replies: int, spec_factor: float) -> None:
        """`prompt_lookup_min`: the shortest match. `max_replies`: maximum number of replies that
        are kept of a tenant. `spec_factor`: longest draft for each token that agrees with an
        earlier reply."""
        self._least, self._max_replies, self._factor = prompt_lookup_min, max_replies, spec_factor
        self._own = NgramProposer(prompt_lookup_min)
        self._tenants: OrderedDict[str, _Replies] = OrderedDict()
        self._num_tokens = 0

    def propose(self, request: Request, most: int) -> Proposal | None:
        """The better of two guesses: from the request's own text, or from earlier replies."""
        own = self._own.propose(request, most)
        replies = self._tenants.get(request.scope.tenant)
        match = replies and replies.index.longest_match(replies.token_ids, request.token_ids)
        if not replies or not match or (own is not None and own.grade >= grade_of(match.length)):
            return own
        count = min(most, max(1, int(self._factor * match.length)))
        token_ids = replies.next_after(match.place, count)
        return Proposal(token_ids, grade_of(match.length)) if token_ids else own

    def forget(self, request: Request) -> None:
        """Keeps the reply of the request for later ones."""
        self._own.forget(request)
        reply = request.token_ids[request.num_prompt_tokens :]
        if len(reply) < self._least or not self._max_replies or len(reply) >= _MAX_TOKENS // 2:
            return
        tenant = request.scope.tenant
        replies = self._tenants.setdefault(tenant, _Replies(self._least))
        self._tenants.move_to_end(tenant)
        self._num_tokens += len(reply) + 1
        replies.add(reply)
        if len(replies.ends) > self._max_replies:
            self._drop(tenant)
        while self._num_tokens > _MAX_TOKENS:
            self._drop(next(iter(self._tenants)))

    def _drop(self, tenant: str) -> None:
        """Drops the older half of a tenant's replies."""
        replies = self._tenants[tenant]
        num_before = len(replies.token_ids)
        replies.drop_older_half(self._least)
        self._num_tokens -= num_before - len(replies.token_ids)
        if not replies.ends:
            del self._tenants[tenant]
