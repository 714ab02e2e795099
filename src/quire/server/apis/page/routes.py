"""The static page, the live view's data, and the documentation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server import ui
from quire.server.apis.page.live import INTERVAL_S, LiveView
from quire.server.bodies.json_http import context_of, json_response
from quire.server.http.event_stream import PLAIN_FORM, EventStream, event
from quire.server.http.problems import HttpError, Problem


async def index(_: Request) -> Response:
    """The page."""
    return _file("index.html")


async def asset(http: Request) -> Response:
    """Serves a file of the page."""
    name = http.path_params["name"]
    if name not in ui.FILES:
        raise HttpError(Problem(404, f"The file {name[:100]!r} does not exist."))
    return _file(name)


def _file(name: str) -> Response:
    return Response(ui.read(name), headers=ui.headers_of(name))


async def live_view(http: Request) -> Response | ASGIApp:
    """The engine at a glance: once, or twice a second as server-sent events."""
    context, views = context_of(http), http.app.state.live
    model = context.target(http.query_params.get("model")).model
    view: LiveView = views.setdefault(model.names[0], LiveView(context, model))
    if "text/event-stream" not in http.headers.get("accept", ""):
        return json_response(await view.snapshot())
    is_closed = False

    async def snapshots() -> AsyncIterator[bytes]:
        while not is_closed and not context.is_stopping:
            yield event(msgspec.json.encode(await view.snapshot()))
            await view.sleep(INTERVAL_S)

    def close() -> None:
        nonlocal is_closed
        is_closed = True

    return EventStream(snapshots(), close, form=PLAIN_FORM)


async def openapi(http: Request) -> Response:
    """This document."""
    return json_response(await asyncio.to_thread(http.app.state.openapi))


async def docs(http: Request) -> Response:
    """The same for people, without a script."""
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    page = await asyncio.to_thread(http.app.state.docs)
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)
