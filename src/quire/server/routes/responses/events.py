"""`event_stream`: the events of a response, as a reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from quire.server.context import ServerContext
from quire.server.http.event_stream import PLAIN_FORM, EventStream


def event_stream(
    context: ServerContext, events: AsyncIterator[bytes], close: Callable[[], None] | None = None
) -> EventStream:
    """A reply of events. `close`: frees their source; None: it goes on without its reader."""
    interval = context.args.sse_keep_alive_interval
    return EventStream(events, close or _nothing, form=PLAIN_FORM, keep_alive_s=interval)


def _nothing() -> None:
    """Frees nothing."""
