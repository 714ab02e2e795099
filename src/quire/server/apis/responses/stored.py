"""The routes of stored responses: read, follow, cancel and delete them, and list their input."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError, quoted
from quire.server.apis.responses.schema.reply import (
    ItemList,
    ItemsQuery,
    ResponseDeleted,
    ResponseQuery,
)
from quire.server.apis.responses.store import (
    ResponseKey,
    StoredItem,
    StoredResponse,
    response_store,
)
from quire.server.bodies.json_http import (
    context_of,
    json_response,
    named_event_stream,
    pieced_response,
)
from quire.server.bodies.json_pieces import JsonPieces
from quire.server.bodies.query import read_query
from quire.server.http.auth import owner_of


async def get_response(http: Request) -> Response | ASGIApp:
    """A stored response, or its events."""
    query = read_query(http, ResponseQuery)
    stored = _stored(http)
    if query.stream:
        if not stored.has_events:
            raise RequestError(
                "stream: only the events of a response with background=true and stream=true are "
                "kept",
                parameter="stream",
            )
        after = -1 if query.starting_after is None else query.starting_after
        return named_event_stream(context_of(http), stored.events_after(after))
    if query.starting_after is not None:
        raise RequestError("starting_after needs stream=true", parameter="starting_after")
    return pieced_response(stored.reply)


async def cancel_response(http: Request) -> Response:
    """Ends a response that is made in the background."""
    stored = _stored(http)
    if not stored.is_background:
        raise RequestError(
            "Cannot cancel a synchronous response: close its connection.", parameter="response_id"
        )
    if stored.cancel is not None:
        stored.cancel()
    await stored.ended()
    return pieced_response(stored.reply)


async def delete_response(http: Request) -> Response:
    """Forgets a stored response, and ends it if it is still made."""
    stored = _stored(http)
    response_store(http).delete(stored.key)
    return json_response(ResponseDeleted(id=stored.id))


async def list_input_items(http: Request) -> Response:
    """The items that a stored response was made from, those of earlier responses first."""
    query = read_query(http, ItemsQuery)
    items = list(_stored(http).given)
    if query.order == "desc":
        items.reverse()
    begin = 0
    if query.after is not None:
        begin = 1 + _index_of(items, query.after)
    shown = items[begin : begin + query.limit]
    pieces = JsonPieces()
    data = pieces.new_list()
    for item in shown:
        data.add_pieces([item.data])
    reply = ItemList(
        data=data.encoded(),
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=begin + len(shown) < len(items),
    )
    return pieced_response(pieces.encode(reply))


def _stored(http: Request) -> StoredResponse:
    key = ResponseKey(owner_of(http.scope), http.path_params["response_id"])
    return response_store(http).get(key)


def _index_of(items: list[StoredItem], item_id: str) -> int:
    for index, item in enumerate(items):
        if item.id == item_id:
            return index
    raise RequestError(
        f"after: no item of this response has the id {quoted(item_id)}", parameter="after"
    )
