"""`ResponseStore`: the responses that are kept, and `StoredResponse`, one of them while it is made
and after."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request

from quire.errors import CapacityError, RequestError, quoted
from quire.server.http.problems import HttpError, Problem
from quire.server.json_pieces import joined
from quire.units import format_bytes

if TYPE_CHECKING:
    from quire.server.apis.responses.reply_schema import ResponseStatus


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
        self, status: ResponseStatus, reply: Sequence[bytes], output: Sequence[StoredItem] = ()
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


@dataclass(slots=True)
class _Kept:
    response: StoredResponse
    until: float
    """On the event loop's clock."""


class ResponseStore:
    """Finds an owner's responses by their ids, and their items by theirs. Where room is needed, the
    owner that has most of it loses its oldest response, so that no owner displaces all others."""

    def __init__(self, max_bytes: int, max_responses: int, seconds: float) -> None:
        """`max_bytes` 0: nothing is stored. `seconds`: how long after its last use."""
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._seconds = seconds
        self._kept: OrderedDict[ResponseKey, _Kept] = OrderedDict()
        """The least recently used first."""
        self._num_bytes_of: Counter[bytes] = Counter()
        self._num_responses_of: Counter[bytes] = Counter()
        """The last two by owner."""
        self._items: dict[tuple[bytes, str], tuple[StoredItem, int]] = {}
        """Items by owner and id, with the number of responses that contain them."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything is stored."""
        return self._max_bytes > 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: ResponseKey) -> bool:
        return key in self._kept

    def get(self, key: ResponseKey, parameter: str = "response_id") -> StoredResponse:
        """Raises HttpError 404; `parameter` is the field with the id."""
        self._drop_expired()
        kept = self._kept.get(key)
        if kept is None:
            raise HttpError(
                Problem(
                    404,
                    f"Response with id {quoted(key.id)} not found: {self._what_is_kept()}.",
                    param=parameter,
                )
            )
        self._renew(key)
        return kept.response

    def item(self, owner: bytes, item_id: str, place: str) -> StoredItem:
        """`place`: of the id in the body. Raises RequestError."""
        self._drop_expired()
        found = self._items.get((owner, item_id))
        if found is None:
            raise RequestError(
                f"{place}: Item with id {quoted(item_id)} not found: {self._what_is_kept()}; send "
                "the item itself.",
                parameter=place,
            )
        return found[0]

    def check(self, response: StoredResponse) -> None:
        """Raises RequestError for a response that cannot be kept."""
        if response.key in self._kept:
            raise RequestError(
                f"request_id: there is a response with the id {quoted(response.id)}",
                parameter="request_id",
            )
        if response.num_bytes > self._max_bytes:
            raise RequestError(
                f"The response cannot be stored: its input takes {response.num_bytes} bytes, and "
                f"all stored responses together {self._max_bytes} (response_store_bytes); send "
                "store=false",
                parameter="store",
            )

    def add(self, response: StoredResponse) -> None:
        """Stores a response. Raises as `check`, and CapacityError if the responses in progress
        leave no room."""
        self.check(response)
        self._make_room(response.num_bytes, 1)
        until = asyncio.get_running_loop().time() + self._seconds
        self._kept[response.key] = _Kept(response, until)
        self._tally(response.owner, response.num_bytes, 1)
        self._count(response.owner, response.given, 1)
        self._set_timer()

    def set_reply(
        self,
        response: StoredResponse,
        status: ResponseStatus,
        reply: Sequence[bytes],
        output: Sequence[StoredItem] = (),
    ) -> None:
        """Sets a new state of a response; drops a response that has become too large."""
        if response.key not in self._kept:
            response.set_reply(status, reply, output)  # for the tasks that wait for it
            return
        self._count(response.owner, response.output, -1)
        self._grow(response, response.set_reply(status, reply, output))
        self._count(response.owner, response.output, 1)
        self._renew(response.key)
        try:
            self._make_room(0, 0)
        except CapacityError:
            self._drop(response.key)

    def add_events(self, response: StoredResponse, events: Sequence[bytes]) -> None:
        """Appends events of a response. Raises CapacityError if they do not fit into the store."""
        num_bytes = response.add_events(events)
        if response.key in self._kept:
            self._grow(response, num_bytes)
            self._make_room(0, 0)

    def delete(self, key: ResponseKey) -> None:
        """Forgets a response, and ends its work. Raises HttpError 404."""
        response = self.get(key)
        self._drop(key)
        if response.cancel is not None:
            response.cancel()

    def _renew(self, key: ResponseKey) -> None:
        self._kept[key].until = asyncio.get_running_loop().time() + self._seconds
        self._kept.move_to_end(key)

    def _grow(self, response: StoredResponse, num_bytes: int) -> None:
        response.num_bytes += num_bytes
        self._tally(response.owner, num_bytes, 0)

    def _tally(self, owner: bytes, num_bytes: int, num_responses: int) -> None:
        self.num_bytes += num_bytes
        self._num_bytes_of[owner] += num_bytes
        self._num_responses_of[owner] += num_responses
        if not self._num_responses_of[owner]:
            del self._num_bytes_of[owner], self._num_responses_of[owner]

    def _make_room(self, num_bytes: int, num_responses: int) -> None:
        self._drop_expired()
        while True:
            if self.num_bytes + num_bytes > self._max_bytes:
                shares = self._num_bytes_of
            elif len(self._kept) + num_responses > self._max_responses:
                shares = self._num_responses_of
            else:
                return
            owners = sorted(shares, key=lambda owner: -shares[owner])
            oldest = next(filter(None, map(self._oldest_of, owners)), None)
            if oldest is None:
                raise CapacityError(
                    "The server is at its limit: the responses that are being made fill the store "
                    f"({self._limits()}). Try again later, or with store=false."
                )
            self._drop(oldest)

    def _oldest_of(self, owner: bytes) -> ResponseKey | None:
        """The least recently used response of an owner that is not being made."""
        for key, kept in self._kept.items():
            if key.owner == owner and not kept.response.is_running:
                return key
        return None

    def _drop(self, key: ResponseKey) -> None:
        response = self._kept.pop(key).response
        self._tally(key.owner, -response.num_bytes, -1)
        self._count(key.owner, response.items, -1)

    def _count(self, owner: bytes, items: Sequence[StoredItem], change: int) -> None:
        for item in items:
            key = (owner, item.id)
            count = self._items.get(key, (item, 0))[1] + change
            if count:
                self._items[key] = (item, count)
            else:
                self._items.pop(key, None)

    def _drop_expired(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if kept.until > now or kept.response.is_running:
                return
            self._drop(key)

    def _set_timer(self) -> None:
        if self._timer is None and self._kept:
            loop = asyncio.get_running_loop()
            first = next(iter(self._kept.values())).until
            self._timer = loop.call_at(max(first, loop.time() + 1.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._drop_expired()
        self._set_timer()

    def _what_is_kept(self) -> str:
        if not self.is_on:
            return "this server stores no responses (response_store_bytes 0)"
        return (
            "responses with store=false are not kept, others as long as there is room "
            f"({self._limits()})"
        )

    def _limits(self) -> str:
        return (
            f"response_store_bytes {format_bytes(self._max_bytes)}, max_stored_responses "
            f"{self._max_responses}, response_store_time {self._seconds:g} s"
        )


def response_store(http: Request) -> ResponseStore:
    """The server's store."""
    store: ResponseStore = http.app.state.response_store
    return store
