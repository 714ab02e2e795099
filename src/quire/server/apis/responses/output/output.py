"""`ResponseOutput`: the items of a response, made of what the parser says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.parsers.events import Arguments, CallBegins, CallEnds, Content, Event, Reasoning
from quire.server.apis.responses.output.open_items import (
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    new_id,
)
from quire.server.apis.responses.schema.events import StreamEvent
from quire.server.apis.responses.schema.items import ItemStatus, OutputItem
from quire.server.apis.responses.tools import Offered
from quire.server.bodies.json_pieces import JsonList, JsonPieces


class ResponseOutput:
    """The items so far; the last one may be open."""

    def __init__(self, offered: Offered, pieces: JsonPieces) -> None:
        self._offered = offered
        self._pieces = pieces
        self._items: list[OpenItem] = []
        self._open: OpenItem | None = None
        self._logprobs: JsonList | None = None
        """Log-probabilities of tokens whose text was not emitted yet."""

    @property
    def num_chars(self) -> int:
        """Total characters of all items."""
        return sum(item.num_chars for item in self._items)

    def items(self) -> list[OutputItem]:
        """All items. With log-probabilities they are encoded next."""
        return [item.item() for item in self._items]

    def take(
        self, parsed: Iterable[Event], logprobs: JsonList | None = None
    ) -> Iterator[StreamEvent]:
        """Adds new events of the reply. `logprobs`: those of the new tokens, which go to the
        message that the step writes; reasoning and calls have no field for them."""
        self._keep(logprobs)
        for event in parsed:
            if isinstance(event, Content):
                message = self._open
                if not isinstance(message, OpenMessage):
                    message = OpenMessage(len(self._items), self._pieces)
                    yield from self._begin(message)
                message.new_logprobs, self._logprobs = self._logprobs, None
                yield from message.add(event.text)
            elif isinstance(event, Reasoning):
                if not isinstance(self._open, OpenReasoning):
                    yield from self._begin(OpenReasoning(len(self._items)))
                yield from self._add(event.text)
            elif isinstance(event, CallBegins):
                yield from self._begin(self._call(event))
            elif isinstance(event, Arguments):
                yield from self._add(event.text)
            elif isinstance(event, CallEnds):
                yield from self._end("completed")

    def finish(self) -> Iterator[StreamEvent]:
        """Ends the reply. An empty reply becomes an empty message; a call is only complete if
        the parser said so."""
        if not self._items:
            yield from self._begin(OpenMessage(0, self._pieces))
        is_call = isinstance(self._open, OpenCall | OpenCustomCall)
        yield from self._end("incomplete" if is_call else "completed")

    def cut(self) -> Iterator[StreamEvent]:
        """Ends a reply that was cut short."""
        yield from self._end("incomplete")

    def _keep(self, logprobs: JsonList | None) -> None:
        if self._logprobs is None:
            self._logprobs = logprobs
        elif logprobs is not None:
            self._logprobs.join(logprobs)

    def _begin(self, item: OpenItem) -> Iterator[StreamEvent]:
        yield from self._end("completed")
        self._items.append(item)
        self._open = item
        yield from item.begin()

    def _add(self, text: str) -> Iterator[StreamEvent]:
        self._logprobs = None
        if self._open is not None:
            yield from self._open.add(text)

    def _end(self, status: ItemStatus) -> Iterator[StreamEvent]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield from ended.end(status)

    def _call(self, event: CallBegins) -> OpenItem:
        tool, call_id = self._offered.get(event.name), event.id or new_id("call")
        if tool is not None and tool.is_custom:
            return OpenCustomCall(len(self._items), call_id, tool)
        return OpenCall(len(self._items), event.name, call_id, tool)
