"""`ChunkWriter`: the events of one streamed reply, whatever their choices look like."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from quire.outputs import RequestOutput
from quire.server.http.event_stream import event
from quire.server.replies.head import ReplyHead
from quire.server.replies.json_pieces import JsonPieces
from quire.server.replies.usage import UsageCounter, timings
from quire.server.schema.chat import ChatChunk
from quire.server.schema.completion import CompletionChunk

Chunk = TypeVar("Chunk", ChatChunk, CompletionChunk)


class ChunkWriter(Generic[Chunk]):
    """Encodes chunks, and counts the usage that they and the last one may tell."""

    def __init__(self, kind: type[Chunk], head: ReplyHead, pieces: JsonPieces) -> None:
        self._kind: type[Chunk] = kind
        self._pieces = pieces
        self._head = head
        self._counter = UsageCounter()

    def see(self, prompt_index: int, output: RequestOutput) -> None:
        """Takes in what a delta says of its prompt, before the chunks that tell of it."""
        self._counter.see(prompt_index, output)

    def count(self, choice: int, num_tokens: int, reasoning_tokens: int | None = None) -> None:
        """A choice has `num_tokens` more, and so many of reasoning now."""
        self._counter.add(choice, num_tokens, reasoning_tokens)

    def chunk(self, prompt_index: int, choice: Any, **fields: Any) -> bytes:
        """One choice's update, with the usage so far if that was asked for."""
        chunk = self._head.begin(self._kind, choices=[choice], **fields)
        if self._head.continuous_usage:
            chunk.usage = self._counter.of_choice(prompt_index, choice.index)
        elif self._head.include_usage:
            chunk.usage = None
        return event(b"".join(self._pieces.encode(chunk)))

    def last(self) -> bytes:
        """The chunk without choices that tells of the whole; empty if it was not asked for."""
        head = self._head
        if not head.include_usage and not head.has_metrics:
            return b""
        chunk = head.begin(self._kind, choices=[])
        chunk.usage = self._counter.total() if head.include_usage else None
        if head.has_metrics:
            chunk.metrics = timings(self._counter.stats)
        return event(msgspec.json.encode(chunk))
