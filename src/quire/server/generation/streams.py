"""Streamed replies: `streamed` writes the events of each step, in portions of small work between
which others have their turn; `StepWriter` is the base of writers whose events are whole replies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.generation.reply import Update, Writer, num_entries, size_of
from quire.server.json_pieces import encoded
from quire.server.work_pool import WorkPool

if TYPE_CHECKING:
    from quire.server.generation.run import Generation


class StepWriter(Writer):
    """A writer whose whole reply is one JSON text, as each event of a stream is."""

    def whole(self, finals: Sequence[RequestOutput]) -> Any:
        [final] = finals
        return self.part(final, final.outputs[0])

    def events(self, updates: Sequence[Update]) -> bytes:
        parts = (self.part(update.output, update.completion) for update in updates)
        lines = (self.line(b"".join(encoded(each))) for each in parts if each is not None)
        return b"".join(lines)

    @abstractmethod
    def part(self, output: RequestOutput, one: CompletionOutput) -> msgspec.Struct | None:
        """A step of the reply, or all of it; None: there is nothing to send yet."""

    @abstractmethod
    def line(self, data: bytes) -> bytes:
        """A step as it is sent in a stream."""


Events = TypeVar("Events", covariant=True)


class UpdateWriter(Protocol[Events]):
    """The part of `Writer` for streams. The events are one text, or each is by itself."""

    repeats_prompt: bool

    def events(self, updates: Sequence[Update]) -> Events: ...


async def streamed(generation: Generation, writer: Writer, pool: WorkPool) -> AsyncIterator[bytes]:
    """The events of a streamed reply, those of one step together."""
    async for data in written(generation, writer, pool):
        if data:
            yield data
    if last := writer.last():
        yield last


async def written(
    generation: Generation, writer: UpdateWriter[Events], pool: WorkPool
) -> AsyncIterator[Events]:
    """The events of a whole generation, those of one step together unless they are many. Between
    two portions others have their turn."""
    begun: set[tuple[int, int]] | None = set() if writer.repeats_prompt else None
    async for batch in generation.outputs():
        is_first = True
        for size, updates in _portions(batch, begun, pool):
            if not is_first:
                await pool.turn()
            is_first = False
            yield await pool.run(size, writer.events, updates)


def _portions(
    batch: Iterable[tuple[int, RequestOutput]], begun: set[tuple[int, int]] | None, pool: WorkPool
) -> Iterator[tuple[int, list[Update]]]:
    """Portions of small work, with their sizes; a single large update is one of its own."""
    updates, total = list[Update](), 0
    for prompt_index, output in batch:
        for completion in output.outputs:
            update = Update(prompt_index, output, completion)
            size = _size_of_update(update, begun)
            if updates and not pool.is_small(total + size):
                yield total, updates
                updates, total = [], 0
            updates.append(update)
            total += size
    if updates:
        yield total, updates


def _size_of_update(update: Update, begun: set[tuple[int, int]] | None) -> int:
    """The work of writing an update, in the pool's units. `begun`: choices that have had one, if
    each has its prompt; None: no choice has."""
    output, one = update.output, update.completion
    size = size_of(one) + num_entries(output.prompt_logprobs)
    choice = (update.prompt_index, one.index)
    if begun is not None and choice not in begun:
        begun.add(choice)
        size += len(output.prompt_token_ids or ())
    return size
