"""The updates of a streamed reply, in portions that are written one after the other.

A step can bring something to many choices at once, and much to a single one. Called by the writers
of replies; knows nothing of how a choice looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.work_pool import INLINE_SIZE, WorkPool

if TYPE_CHECKING:
    from quire.server.generation.run import Generation


@dataclass(frozen=True, slots=True)
class Update:
    """New output of one choice."""

    prompt_index: int
    output: RequestOutput
    """Output of the choice's prompt."""
    completion: CompletionOutput


Events = TypeVar("Events", covariant=True)


class UpdateWriter(Protocol[Events]):
    """Writes a reply's events: as one text, or each by itself."""

    def size(self, update: Update) -> int:
        """The work of writing an update, in the pool's units."""

    def events(self, updates: Sequence[Update]) -> Events:
        """The events for these updates."""


@dataclass(slots=True)
class _Portion:
    updates: list[Update] = field(default_factory=list)
    size: int = 0


async def written(
    generation: Generation, writer: UpdateWriter[Events], pool: WorkPool
) -> AsyncIterator[Events]:
    """The events of a whole generation, those of one step together unless they are many. Between
    two portions others have their turn."""
    async for batch in generation.outputs():
        is_first = True
        for portion in _portions(batch, writer):
            if not is_first:
                await pool.turn()
            is_first = False
            yield await pool.run(portion.size, writer.events, portion.updates)


def _portions(
    batch: Iterable[tuple[int, RequestOutput]], writer: UpdateWriter[Any]
) -> Iterator[_Portion]:
    """Portions of small work; a single large update is a portion of its own."""
    portion = _Portion()
    for prompt_index, output in batch:
        for completion in output.outputs:
            update = Update(prompt_index, output, completion)
            size = writer.size(update)
            if portion.updates and portion.size + size > INLINE_SIZE:
                yield portion
                portion = _Portion()
            portion.updates.append(update)
            portion.size += size
    if portion.updates:
        yield portion


def size_of(completion: CompletionOutput) -> int:
    """A completion's own size: a few units, its tokens, and its log-probabilities."""
    return 16 + len(completion.token_ids) + num_entries(completion.logprobs)


def num_entries(logprobs: object) -> int:
    """Log-probabilities of all positions together; 0 if none were asked for."""
    return logprobs.num_entries() if isinstance(logprobs, FlatLogprobs) else 0


def size_of_whole(finals: Iterable[RequestOutput], num_copies: int) -> int:
    """The size of a whole reply with `num_copies` copies of each prompt or its
    log-probabilities."""
    size = 0
    for final in finals:
        size += sum(size_of(completion) for completion in final.outputs)
        size += num_entries(final.prompt_logprobs)
        size += num_copies * len(final.prompt_token_ids or ())
    return size
