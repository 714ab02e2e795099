"""`StoredResponse`: one response that is kept, while it is made and after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire.server.bodies.json_pieces import joined

if TYPE_CHECKING:
    from quire.server.apis.responses.schema.reply import ResponseStatus

_ITEM_BYTES = 200
"""Bytes of the Python objects of an item, an event or a piece of JSON, in addition to its text."""
_SENT_AT_ONCE = 1 << 16


class ResponseKey(NamedTuple):
    """The key of a stored response. Two owners may use the same id."""

    owner: bytes
    id: str


class StoredItem(NamedTuple):
    """An item as JSON text."""

    id: str
    data: bytes


class StoredResponse:
    """A response: its JSON text, the items of its conversation, and its events if it is a stream
    in the background. Owned by the event loop.

    Items that several responses share are counted for each: their text is there once.
    """

    def __init__(
        self,
        response_id: str,
        owner: bytes,
        history: Sequence[StoredItem],
        input_items: Sequence[StoredItem],
        *,
        is_background: bool,
        has_events: bool,
    ) -> None:
        """`owner`: the API key that may read it (`owner_of`). `history`: the items before the
        input."""
        self.id = response_id
        self.owner = owner
        self.is_background = is_background
        self.has_events = has_events
        self.status: ResponseStatus = "queued"
        self.reply: Sequence[bytes] = ()
        """The response as JSON text, in pieces."""
        self.given = (*history, *input_items)
        """All items that the model was shown."""
        self.output: tuple[StoredItem, ...] = ()
        self.events: list[bytes] = []
        """Stream events; the index is the sequence number."""
        self.cancel: Callable[[], None] | None = None
        """Cancels the response while it is in progress."""
        self.num_bytes = _size(item.data for item in self.given)
        self._news = asyncio.Event()

    @property
    def key(self) -> ResponseKey:
        """The key under which a store keeps it."""
        return ResponseKey(self.owner, self.id)

    @property
    def is_running(self) -> bool:
        """Whether the response is still in progress."""
        return self.status in ("queued", "in_progress")

    @property
    def items(self) -> tuple[StoredItem, ...]:
        """The whole conversation, with the reply."""
        return (*self.given, *self.output)

    def set_reply(
        self,
        status: ResponseStatus,
        reply: Sequence[bytes],
        output: Sequence[StoredItem] = (),
    ) -> int:
        """A new state; returns how many bytes more it takes."""
        before = _size(self.reply) + _size(item.data for item in self.output)
        self.status, self.reply, self.output = status, reply, tuple(output)
        if not self.is_running:
            self.cancel = None
            self.tell()
        return _size(self.reply) + _size(item.data for item in self.output) - before

    def add_events(self, events: Sequence[bytes]) -> int:
        """The next events; returns how many bytes more they take."""
        self.events += events
        self.tell()
        return _size(events)

    def tell(self) -> None:
        """Wakes up the tasks that wait for a change."""
        self._news.set()
        self._news = asyncio.Event()

    async def ended(self) -> None:
        """Waits until the response has ended."""
        while self.is_running:
            await self._news.wait()

    async def events_after(self, after: int) -> AsyncIterator[bytes]:
        """The events after number `after`, as they arrive, until the last one."""
        position = after + 1
        while True:
            news, is_running = self._news, self.is_running
            new = self.events[position:]
            position += len(new)
            for data in joined(new, _SENT_AT_ONCE):
                yield data
            if not new:
                if not is_running:
                    return
                await news.wait()


def _size(texts: Iterable[bytes]) -> int:
    return sum(_ITEM_BYTES + len(text) for text in texts)
