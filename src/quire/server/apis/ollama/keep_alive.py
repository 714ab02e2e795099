"""`keep_alive` of Ollama's requests: how long a model stays loaded."""

from __future__ import annotations

from starlette.requests import Request

from quire.server.apis.fleet.routes import parsed_keep_alive
from quire.server.bodies.json_http import context_of
from quire.server.served_model import ServedModel


def keep_loaded(http: Request, model: ServedModel, keep_alive: str | int | float | None) -> None:
    """Applies a request's `keep_alive`. A server of one model never unloads it: the reply names the
    field as ignored. Raises RequestError for a value that is no time."""
    if keep_alive is None:
        return
    seconds = parsed_keep_alive(keep_alive)
    context = context_of(http)
    if context.fleet is None:
        context.ignored_fields.tell(http, ["keep_alive"])
    else:
        context.fleet.keep_alive(model, seconds)
