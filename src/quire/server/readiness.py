"""Whether a server can serve: the state that probes and the page show."""

from __future__ import annotations

from typing import Literal

from quire.server.context import ServerContext
from quire.server.served_model import ServedModel

ServerState = Literal["loading", "ready", "paused", "draining", "stalled", "dead"]
_WORST_FIRST: tuple[ServerState, ...] = (
    "dead", "loading", "draining", "stalled", "paused", "ready",
)  # fmt: skip


def state_of(context: ServerContext) -> tuple[ServerState, str]:
    """The state of the server, and the reason if it cannot serve. With several models it is
    the worst of their states."""
    if context.fleet is not None:
        return _state_of_several(context)
    states = [_state_of_one(context, model) for model in context.models]
    return min(states, key=lambda one: _WORST_FIRST.index(one[0]))


def _state_of_several(context: ServerContext) -> tuple[ServerState, str]:
    """A model that is not loaded, or whose engine died, is loaded by the next request."""
    if not context.is_started:
        return "loading", "the first models are being loaded"
    if context.is_draining:
        return "draining", "the server is shutting down"
    return "ready", ""


def _state_of_one(context: ServerContext, model: ServedModel) -> tuple[ServerState, str]:
    if model.engine is None:
        return "loading", "the model is being loaded"
    health = model.engine.health()
    if health.state == "dead":
        return "dead", health.reason
    if context.is_draining:
        return "draining", "the server is shutting down"
    if health.state == "stalled":
        return "stalled", health.reason
    if model.engine.pause_mode is not None:
        return "paused", "generation is paused"
    return "ready", ""
