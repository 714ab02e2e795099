"""`ModelProposer`: passes on what the worker's draft model proposed after the last step."""

from __future__ import annotations

from quire.scheduler.drafting.proposer import OF_MODEL, Proposal, Proposer
from quire.scheduler.request import Request


class ModelProposer(Proposer):
    """Keeps nothing: the result of a step has the proposals for the next one."""

    def propose(self, request: Request, most: int) -> Proposal | None:
        """The first of the proposed tokens."""
        token_ids = request.proposed_token_ids[:most]
        return Proposal(token_ids, OF_MODEL) if token_ids else None

    def forget(self, request: Request) -> None:
        """Does nothing."""
