"""Content blocks of a reply: as events of a stream, and whole, which is the sum of these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from quire.parsers.events import Arguments, CallBegins, CallEnds, Content, Event, Reasoning
from quire.server.apis.chat.argument_text import InputText, object_of
from quire.server.apis.messages.reply import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    Delta,
    InputDelta,
    ReplyBlock,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)

_EMPTY = msgspec.Raw(b"{}")


class BlockWriter:
    """Writes the blocks of one reply as its events come. A block ends where another begins."""

    def __init__(self) -> None:
        self._index = -1
        self._open: ReplyBlock | None = None
        """The open block as it began, without content."""
        self._input = InputText()
        self._signature = hashlib.sha256()

    def write(self, events: Iterable[Event]) -> list[BlockEvent]:
        """Converts events of the reply to events of blocks."""
        written: list[BlockEvent] = []
        for event in events:
            written += self._written(event)
        return written

    def end(self) -> list[BlockEvent]:
        """Ends the reply. A reply without content gets an empty text block, because clients read
        the first block."""
        begun = [] if self._index >= 0 else self._begin(TextBlock(text=""))
        return begun + self._close()

    def _written(self, event: Event) -> list[BlockEvent]:
        if isinstance(event, Content):
            begun = [] if isinstance(self._open, TextBlock) else self._begin(TextBlock(text=""))
            return [*begun, self._delta(TextDelta(text=event.text))]
        if isinstance(event, Reasoning):
            is_open = isinstance(self._open, ThinkingBlock)
            begun = [] if is_open else self._begin(ThinkingBlock(thinking=""))
            self._signature.update(event.text.encode("utf-8", "surrogatepass"))
            return [*begun, self._delta(ThinkingDelta(thinking=event.text))]
        if isinstance(event, CallBegins):
            return self._begin(ToolUseBlock(id=event.id or "", name=event.name, input=_EMPTY))
        if isinstance(event, Arguments):
            return self._input_delta(self._input.feed(event.text))
        assert isinstance(event, CallEnds)
        rest = "" if self._input.is_whole else self._input.close()
        return [*self._input_delta(rest), *self._close()]

    def _begin(self, block: ReplyBlock) -> list[BlockEvent]:
        closed = self._close()
        self._index += 1
        self._open = block
        self._input, self._signature = InputText(), hashlib.sha256()
        return [*closed, BlockStart(index=self._index, content_block=block)]

    def _close(self) -> list[BlockEvent]:
        if self._open is None:
            return []
        events: list[BlockEvent] = []
        if isinstance(self._open, ThinkingBlock):
            events.append(self._delta(SignatureDelta(signature=self._signature.hexdigest())))
        self._open = None
        return [*events, BlockStop(index=self._index)]

    def _input_delta(self, text: str) -> list[BlockEvent]:
        return [self._delta(InputDelta(partial_json=text))] if text else []

    def _delta(self, delta: Delta) -> BlockDelta:
        return BlockDelta(index=self._index, delta=delta)


def whole_blocks(events: Iterable[BlockEvent]) -> list[ReplyBlock]:
    """The blocks that these events of a whole reply make."""
    blocks: list[ReplyBlock] = []
    parts: list[str] = []
    signature = ""
    for event in events:
        if isinstance(event, BlockStart):
            blocks.append(event.content_block)
            parts.clear()
        elif isinstance(event, BlockStop):
            blocks[-1] = _filled(blocks[-1], "".join(parts), signature)
        elif isinstance(event.delta, SignatureDelta):
            signature = event.delta.signature
        else:
            parts.append(_text_of(event.delta))
    return blocks


def _text_of(delta: TextDelta | ThinkingDelta | InputDelta) -> str:
    if isinstance(delta, TextDelta):
        return delta.text
    return delta.thinking if isinstance(delta, ThinkingDelta) else delta.partial_json


def _filled(block: ReplyBlock, text: str, signature: str) -> ReplyBlock:
    if isinstance(block, TextBlock):
        return TextBlock(text=text)
    if isinstance(block, ThinkingBlock):
        return ThinkingBlock(thinking=text, signature=signature)
    return ToolUseBlock(id=block.id, name=block.name, input=msgspec.Raw(object_of(text).encode()))
