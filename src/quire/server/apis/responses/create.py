"""`/v1/responses`: makes a response from a generation, and answers questions about stored ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import QuireError, RequestError, quoted
from quire.server.apis.responses.reading import Asked, asked_of
from quire.server.apis.responses.reply_schema import (
    AnyEvent,
    InputTokens,
    ItemList,
    ItemsQuery,
    ResponseDeleted,
    ResponseQuery,
)
from quire.server.apis.responses.reply_schema import Response as ResponseReply
from quire.server.apis.responses.schema import ResponsesRequest
from quire.server.apis.responses.shape import ResponseShape
from quire.server.apis.responses.store import (
    ResponseKey,
    ResponseStore,
    StoredItem,
    StoredResponse,
    response_store,
)
from quire.server.apis.responses.writing import ResponsesWriter
from quire.server.bodies.json_http import context_of, named_event_stream, pieced_response
from quire.server.context import ServerContext
from quire.server.conversation.prompts import prompts_of
from quire.server.endpoint import BAD_BODY
from quire.server.generation.begin import begin, whole_reply
from quire.server.generation.rendering import RenderedPrompt, rendered
from quire.server.generation.reply import ReplyHead
from quire.server.generation.run import Generation
from quire.server.generation.streams import written
from quire.server.http.auth import owner_of
from quire.server.http.presence import until_gone
from quire.server.json_pieces import JsonList, encoded
from quire.server.requests.request import AnyRequest
from quire.server.routing import Routes
from quire.server.work_pool import WorkPool


class ResponseRun:
    """Makes one response, and keeps it if it is stored."""

    def __init__(
        self,
        pool: WorkPool,
        store: ResponseStore,
        generation: Generation,
        writer: ResponsesWriter,
        stored: StoredResponse,
        *,
        is_stored: bool,
    ) -> None:
        """`is_stored`: `stored` is kept, once the response is complete."""
        self.generation = generation
        self._pool = pool
        self._store = store
        self.writer = writer
        self._stored = stored
        self._is_stored = is_stored

    async def whole(self) -> list[bytes]:
        """The response, in pieces; none if the generation was closed. Raises the error that ended
        it otherwise."""
        async for _ in written(self.generation, self.writer, self._pool):
            pass
        if not self.writer.has_ended:
            return []
        reply = await self.text_of(self.writer.whole)
        self._keep(reply)
        return reply

    async def stream(self) -> AsyncIterator[bytes]:
        """The events, those of one step together. The response is kept before the last one."""
        async for sent in self._updates():
            yield b"".join(sent)
        if self.writer.has_ended:
            last = await self.text_of(self.writer.last)
            if self._is_stored and not self.writer.has_failed:
                self._keep(await self.text_of(self.writer.whole))
            yield b"".join(last)

    async def in_background(self) -> None:
        """Completes a response that is stored already, with its events for callers who ask for
        them. It always ends, because the store never drops a response that is in progress."""
        try:
            await self._make_in_background()
            await self._keep_end()
        except BaseException as error:
            self._give_up(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.generation.close()

    async def _make_in_background(self) -> None:
        """Keeps the events, if they are wanted, up to the last one."""
        stored, store, writer = self._stored, self._store, self.writer
        try:
            async for sent in self._updates():
                if stored.status == "queued" and writer.has_output:
                    store.set_reply(stored, "in_progress", await self.text_of(writer.in_progress))
                if stored.has_events:
                    store.add_events(stored, sent)
            if writer.has_ended and stored.has_events:
                store.add_events(stored, await self.text_of(writer.last))
        except Exception as error:  # such as: the store has no room for more events
            writer.fail(error)
            if stored.has_events:
                stored.add_events(await self.text_of(writer.last))

    async def _keep_end(self) -> None:
        stored, store, writer = self._stored, self._store, self.writer
        if writer.has_ended:
            reply = await self.text_of(writer.whole)
            store.set_reply(stored, writer.status, reply, writer.stored_output())
        else:
            store.set_reply(stored, "cancelled", writer.cancelled(), writer.stored_output())

    def _give_up(self, error: BaseException) -> None:
        """Marks the response as failed, without its output, because its end cannot be written."""
        stored, writer = self._stored, self.writer
        writer.fail(error)
        if stored.has_events:
            stored.add_events(writer.bare_failure_event(len(stored.events)))
        self._store.set_reply(stored, "failed", writer.bare_failure())

    async def _updates(self) -> AsyncIterator[list[bytes]]:
        """All events but the last one. Ends early if the generation is closed."""
        writer = self.writer
        yield await self.text_of(writer.begin)
        try:
            async for sent in written(self.generation, self.writer, self._pool):
                if sent:
                    yield sent
        except Exception as error:
            self.writer.fail(error)

    async def text_of(self, write: Callable[[], list[bytes]]) -> list[bytes]:
        """The bytes that a method of the writer gives."""
        return await self._pool.run(self.writer.size, write)

    def _keep(self, reply: list[bytes]) -> None:
        if self._is_stored:
            store, writer = self._store, self.writer
            with suppress(QuireError):  # the store is full, or the id is taken
                store.add(self._stored)
                store.set_reply(self._stored, writer.status, reply, writer.stored_output())


async def run_response(
    http: Request, request: ResponsesRequest
) -> tuple[ResponseReply, tuple[StoredItem, ...]] | None:
    """A whole response that is not kept, and the items that it was made from; None: the client
    has left."""
    context = context_of(http)
    asked = await asked_of(http, context, request)
    run = await _begin(http, context, asked)
    if not await until_gone(http, run.generation.close, run.whole()):
        return None
    return run.writer.response(), asked.stored.given


ROUTES = Routes("responses")
_RESPONSES: dict[str, Any] = {
    "response": ResponseReply, "stream": AnyEvent, "has_named_events": True,
}  # fmt: skip


@ROUTES.on("POST", "/v1/responses", "/responses", **_RESPONSES)
async def create_response(http: Request, request: ResponsesRequest) -> Response | ASGIApp:
    """Responds to an input with messages and calls of tools."""
    context = context_of(http)
    asked = await asked_of(http, context, request)
    run = await _begin(http, context, asked)
    if request.background:
        return await _in_background(http, asked, run)
    if request.stream:
        return named_event_stream(context, run.stream(), run.generation.close)
    pieces = await until_gone(http, run.generation.close, run.whole())
    return whole_reply(http, run.generation, pieces) if pieces else Response()


@ROUTES.on("POST", "/v1/responses/input_tokens", errors=BAD_BODY)
async def count_input_tokens(http: Request, request: ResponsesRequest) -> InputTokens:
    """Counts the tokens of the prompt of a response."""
    context = context_of(http)
    text = (await asked_of(http, context, request, has_reply=False)).text
    model = context.target(request.model).model
    with text.named():
        [prompt] = await prompts_of(model, text, has_reply=False)
    return InputTokens(input_tokens=len(prompt.token_ids))


@ROUTES.on("POST", "/v1/responses/render", response=RenderedPrompt, errors=BAD_BODY)
async def render_response(http: Request, request: ResponsesRequest) -> Response:
    """The prompt and parameters that a request for a response would run with."""
    text = (await asked_of(http, context_of(http), request, has_reply=False)).text
    return await rendered(http, text, "chatcmpl", is_list=False)


async def _begin(http: Request, context: ServerContext, asked: Asked) -> ResponseRun:
    head = ReplyHead.of(context, http, asked.text, "resp")
    head = replace(head, id=asked.stored.id)
    has_events, num_bytes = asked.request.stream is True, len(await http.body())

    def make_writer(_: AnyRequest, head: ReplyHead, prompts: list[Any]) -> ResponsesWriter:
        [prompt], engine = prompts, head.target.model.loaded_engine()
        defaults = engine.config.model.default_sampling_params
        shape = ResponseShape(
            asked.request, defaults, head.id, head.created, head.model, asked.is_stored, num_bytes
        )
        return ResponsesWriter(
            shape,
            prompt,
            asked.offered,
            engine.tokenizer,
            has_events=has_events,
            has_metrics=head.has_metrics,
            tokens_as_ids=head.tokens_as_ids,
        )

    generation, writer = await begin(http, asked.text, head, make_writer)
    store = response_store(http)
    return ResponseRun(
        context.pool, store, generation, writer, asked.stored, is_stored=asked.is_stored
    )


async def _in_background(http: Request, asked: Asked, run: ResponseRun) -> Response | ASGIApp:
    """Answers at once, and completes the response in the background."""
    context, store, stored = context_of(http), response_store(http), asked.stored
    try:
        queued = await run.text_of(run.writer.queued)
        store.add(stored)
    except BaseException:
        run.generation.close()
        raise
    store.set_reply(stored, "queued", queued)
    stored.cancel = run.generation.close
    context.keep(run.in_background())
    if asked.request.stream:
        return named_event_stream(context, stored.events_after(-1))
    return pieced_response(queued)


@ROUTES.on("GET", "/v1/responses/{response_id}", errors=(400, 404), **_RESPONSES)
async def get_response(http: Request, query: ResponseQuery) -> Response | ASGIApp:
    """A stored response, or its events."""
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


@ROUTES.on("POST", "/v1/responses/{response_id}/cancel", response=ResponseReply, errors=(400, 404))
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


@ROUTES.on("DELETE", "/v1/responses/{response_id}", errors=(404,))
async def delete_response(http: Request) -> ResponseDeleted:
    """Forgets a stored response, and ends it if it is still made."""
    stored = _stored(http)
    response_store(http).delete(stored.key)
    return ResponseDeleted(id=stored.id)


@ROUTES.on("GET", "/v1/responses/{response_id}/input_items", response=ItemList, errors=(400, 404))
async def list_input_items(http: Request, query: ItemsQuery) -> Response:
    """The items that a stored response was made from, those of earlier responses first."""
    items = list(_stored(http).given)
    if query.order == "desc":
        items.reverse()
    begin = 0
    if query.after is not None:
        begin = 1 + _index_of(items, query.after)
    shown = items[begin : begin + query.limit]
    data = JsonList()
    for item in shown:
        data.add_encoded([item.data])
    reply = ItemList(
        data=data.as_field(),
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=begin + len(shown) < len(items),
    )
    return pieced_response(encoded(reply))


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
