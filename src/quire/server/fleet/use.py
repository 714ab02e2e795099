"""Use of the fleet by one HTTP request, from the body that names its model to the end of its reply
(`ModelUse`); and the reply of a stream whose model is being loaded (`WhileLoading`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.error_forms import for_route
from quire.server.http.presence import while_present
from quire.server.http.problems import problem_of
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.server.context import ServerContext
    from quire.server.fleet.fleet import Fleet

Form = Literal["openai", "messages", "ollama"]
"""The API whose form the reply has."""
MODEL_USE = "quire.model_use"
"""Key in a request's scope: its `ModelUse`, if the route needs a loaded model."""
_COMMENT_S = 5.0
"""Time between two signs of life of a stream whose model is being loaded."""
_PATIENCE_S = 1.0
"""Time after which the first is sent: until then, an error has a status of its own."""
_LINES = "application/x-ndjson"


class ModelUse:
    """The model that one request uses."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._model: ServedModel | None = None
        self.is_loading_for_stream = asyncio.Event()
        """Set once a request for a stream waits for its model."""

    async def begin(self, request: Request, body: Any) -> None:
        """Waits until the model that a body names is loaded, and keeps it so until `end`. Raises
        HttpError; ClientDisconnect if the client disconnects while the model is loaded."""
        fleet = self._context.fleet
        if fleet is None or not hasattr(body, "model") or getattr(body, "only_unloads", False):
            return
        model = self._context.target(body.model).model
        if model is self._model:
            return
        self.end()
        if fleet.is_loaded(model):
            await self._acquire(fleet, model)
        else:
            if getattr(body, "stream", None):
                self.is_loading_for_stream.set()
            try:
                await while_present(request, self._acquire(fleet, model))
            except BaseException:
                self.end()
                raise

    async def _acquire(self, fleet: Fleet, model: ServedModel) -> None:
        await fleet.acquire(model)
        self._model = model

    def end(self) -> None:
        """The request does not need the model any more. Idempotent."""
        model, self._model = self._model, None
        if model is not None and self._context.fleet is not None:
            self._context.fleet.release(model)


async def with_loaded_model(
    request: Request,
    context: ServerContext,
    handler: Callable[[Request], Awaitable[Any]],
    form: Form,
) -> Any:
    """The reply of a handler, whose model stays loaded until the reply was sent."""
    use = ModelUse(context)
    request.scope[MODEL_USE] = use
    working = asyncio.ensure_future(handler(request))
    waiting = asyncio.ensure_future(use.is_loading_for_stream.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait({working}, timeout=_PATIENCE_S)
        if working.done():
            return _ending(working.result(), use)
        return WhileLoading(working, use, form)
    except BaseException:
        working.cancel()
        use.end()
        raise
    finally:
        waiting.cancel()


def _ending(reply: ASGIApp, use: ModelUse) -> ASGIApp:
    """A reply after which the model is given back."""

    async def sent(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await reply(scope, receive, send)
        finally:
            use.end()

    return sent


class WhileLoading:
    """A stream that sends comments until the handler has its reply, and then this reply.

    Its status is 200, so an error is an event of the stream.
    """

    def __init__(self, working: asyncio.Future[Any], use: ModelUse, form: Form) -> None:
        self._working = working
        self._use = use
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        media = _LINES if self._form == "ollama" else "text/event-stream; charset=utf-8"
        headers = [(b"content-type", media.encode()), (b"cache-control", b"no-cache")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not self._working.done():
                await send(_part(b" " if self._form == "ollama" else b": loading the model\n\n"))
                await asyncio.wait({self._working}, timeout=_COMMENT_S)
            try:
                reply = self._working.result()
                await reply(scope, receive, self._without_start(send))
            except ClientDisconnect:
                return
            except Exception as error:
                body = for_route(scope, problem_of(error)).body()
                await send(_part(self._as_event(body), is_last=True))
        finally:
            self._working.cancel()
            self._use.end()

    def _as_event(self, body: bytes) -> bytes:
        if self._form == "ollama":
            return body + b"\n"
        name = b"event: error\n" if self._form == "messages" else b""
        return name + b"data: " + body + b"\n\n"

    def _without_start(self, send: Send) -> Send:
        """Sends a reply after its status line was sent; the body of an error becomes an event."""
        status = 200

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and message.get("body"):
                await send({**message, "body": self._as_event(message["body"])})
            else:
                await send(message)

        return sent


def _part(body: bytes, *, is_last: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": not is_last}
