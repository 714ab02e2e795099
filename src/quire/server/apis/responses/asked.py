"""`asked_of`: a request of `/v1/responses`, checked and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from quire.errors import RequestError
from quire.server.apis.responses.items_schema import Item
from quire.server.apis.responses.messages import input_items, kept_item, kind_of, restored
from quire.server.apis.responses.open_items import new_id
from quire.server.apis.responses.reading import check_fields, read_response
from quire.server.apis.responses.schema import ResponsesRequest
from quire.server.apis.responses.store import (
    ResponseKey,
    ResponseStore,
    StoredItem,
    StoredResponse,
    response_store,
)
from quire.server.apis.responses.tools import Offered, offered_tools, shown_tools
from quire.server.context import ServerContext
from quire.server.conversation.conversation import Conversation
from quire.server.http.auth import owner_of
from quire.server.requests.request import TextRequest

_UNITS_PER_ITEM = 8
"""Units of the pool's sizes for an item that is converted."""
_BYTES_PER_UNIT = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was checked and read."""

    request: ResponsesRequest
    text: TextRequest[Conversation]
    offered: Offered
    stored: StoredResponse
    is_stored: bool


async def asked_of(
    http: Request, context: ServerContext, request: ResponsesRequest, *, has_reply: bool = True
) -> Asked:
    """Raises RequestError, and HttpError 404 for a previous response that is not stored."""
    check_fields(request)
    store = response_store(http)
    is_stored = store.is_on and request.store is not False
    if request.background and not is_stored:
        raise RequestError(_NEEDS_STORE[store.is_on], parameter="background")
    request.tools, left_out = shown_tools(request)
    context.target(request.model)
    owner = owner_of(http.scope)
    history = _history(store, owner, request)
    given = [
        store.item(owner, item.id or "") if kind_of(item) == "item_reference" else item
        for item in input_items(request.input)
    ]
    size = _UNITS_PER_ITEM * (len(given) + len(request.tools or ()))
    size += sum(len(item.data) // _BYTES_PER_UNIT + _UNITS_PER_ITEM for item in history)
    text, kept, offered = await context.pool.run(size, _read, request, history, given, has_reply)
    text.ignored += left_out
    if request.store and not store.is_on:
        text.ignored.append("store")
    if not has_reply:
        context.ignored_fields.tell(http, text.ignored)
    stored = StoredResponse(
        request.request_id or new_id("resp"),
        owner,
        history,
        kept,
        is_background=request.background is True,
        has_events=request.background is True and request.stream is True,
    )
    if is_stored:
        store.check(stored)
    return Asked(request, text, offered, stored, is_stored)


def _history(
    store: ResponseStore, owner: bytes, request: ResponsesRequest
) -> tuple[StoredItem, ...]:
    """The items of the response that this one goes on from."""
    if request.previous_response_id is None:
        return ()
    key = ResponseKey(owner, request.previous_response_id)
    previous = store.get(key, "previous_response_id")
    if previous.status not in ("completed", "incomplete"):
        raise RequestError(
            f"previous_response_id: that response is {previous.status}; only one that is complete "
            "can be gone on from",
            parameter="previous_response_id",
        )
    return previous.items


def _read(
    request: ResponsesRequest,
    history: Sequence[StoredItem],
    given: Sequence[Item | StoredItem],
    has_reply: bool,
) -> tuple[TextRequest[Conversation], list[StoredItem], Offered]:
    """The request for text, the input's items for the store, and the tools."""
    offered = offered_tools(request.tools or [])
    items = [restored([one])[0] if isinstance(one, StoredItem) else one for one in given]
    text = read_response(request, restored(history), items, offered, has_reply=has_reply)
    kept = [one if isinstance(one, StoredItem) else kept_item(one) for one in given]
    return text, kept, offered


_NEEDS_STORE = {
    True: "background can only be used when `store` is true: leave `store` out, or set it to true",
    False: "background=true needs stored responses, which this server does not have: start it "
    "with --response-store-bytes above 0",
}
"""By whether the server stores responses."""
