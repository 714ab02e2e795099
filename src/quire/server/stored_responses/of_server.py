"""The store of a server, made when it is first asked for."""

from __future__ import annotations

from quire.server.context import ServerContext
from quire.server.stored_responses.store import ResponseStore


def response_store(context: ServerContext) -> ResponseStore:
    """The responses that the server keeps."""
    if context.responses is None:
        args = context.args
        context.responses = ResponseStore(
            args.response_store_bytes, args.max_stored_responses, args.response_store_time
        )
    return context.responses
