"""`Members`: the requests in the batch of logits processors, in the order of their rows of logits.

The batch contains exactly the requests that get a next token in the step: a prompt that takes
several steps is added in the last of them. Places have no gaps. A request that skips a step, or is
preempted, is removed, and later added again with the tokens that it has then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.logits_processors.interface import (
    AddedRequest,
    BatchUpdate,
    MoveDirectionality,
    MovedRequest,
)
from quire.params import SamplingParams
from quire.protocol import ScheduledRequest, SchedulePlan


@dataclass(slots=True, eq=False)
class Member:
    """A request that the worker holds. After a preemption it gets a new object."""

    request_id: str
    params: SamplingParams
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    """Generated tokens; the list grows in place."""

    def added_at(self, place: int) -> AddedRequest:
        """The tuple that a processor gets when the request is added."""
        return place, self.params, self.prompt_token_ids, self.output_token_ids


class Members:
    """Owned by the worker's thread."""

    def __init__(self) -> None:
        self._held: dict[str, Member] = {}
        self.batch: list[Member] = []

    def apply(self, plan: SchedulePlan) -> None:
        """Removes and adds requests according to the plan."""
        for request_id in plan.released_request_ids:
            self._held.pop(request_id, None)
        for request in plan.started.values():
            self._held[request.request_id] = _member(request)

    def advance(self, request_ids: Sequence[str], token_ids: Sequence[int]) -> None:
        """Takes in the next token of each of these requests."""
        for request_id, token_id in zip(request_ids, token_ids, strict=True):
            self._held[request_id].output_token_ids.append(token_id)

    def settle(self, request_ids: Sequence[str]) -> BatchUpdate | None:
        """Makes these requests the batch. Returns the update, or None if nothing has changed."""
        wanted = [self._held[request_id] for request_id in request_ids]
        batch: list[Member | None] = list(self.batch)
        stay = set(wanted).intersection(self.batch)
        if len(stay) == len(wanted) == len(batch):
            return None
        free = [place for place, member in enumerate(self.batch) if member not in stay]
        for place in free:
            batch[place] = None
        added: list[AddedRequest] = []
        for member in wanted:
            if member in stay:
                continue
            if free:
                place = free.pop(0)
                batch[place] = member
            else:
                place = len(batch)
                batch.append(member)
            added.append(member.added_at(place))
        removed, moved = _close_gaps(batch, free)
        self.batch = [member for member in batch if member is not None]
        return BatchUpdate(len(self.batch), removed, added, moved)

    def all_added(self) -> BatchUpdate:
        """An update that adds the whole batch, for a new processor."""
        added = [member.added_at(place) for place, member in enumerate(self.batch)]
        return BatchUpdate(len(self.batch), (), added, ())


def _close_gaps(
    batch: list[Member | None], free: list[int]
) -> tuple[list[int], list[MovedRequest]]:
    """Moves the last requests into the free places (ascending) and shortens the batch. Returns the
    removed places in descending order, and the moves."""
    removed: list[int] = []
    moved: list[MovedRequest] = []
    while free:
        last = len(batch) - 1
        if batch[last] is None:
            removed.append(free.pop())
        else:
            place = free.pop(0)
            batch[place] = batch[last]
            moved.append((last, place, MoveDirectionality.UNIDIRECTIONAL))
        batch.pop()
    return removed, moved


def _member(request: ScheduledRequest) -> Member:
    prompt = request.token_ids[: request.num_prompt_tokens]
    output = request.token_ids[request.num_prompt_tokens :]
    return Member(request.request_id, request.sampling_params, prompt, output)
