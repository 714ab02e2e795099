"""`Endpoint`: one method on one path, and what answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.types import Scope

from quire.config.pooling import PoolingTask

Handler = Callable[..., Awaitable[Any]]
Method = Literal["GET", "POST", "DELETE"]
Switch = Literal[
    "adapters", "dev", "kv_store", "library", "profiler", "several_models", "tokenizer_info"
]
Gives = (
    Literal["anything", "text", "words of sound", "pooled", "embed or classify", "sparse", "scores"]
    | PoolingTask
)
"""Result of a route; a model that gives it can answer the route."""
BAD_BODY = (400, 404, 408, 413, 415)
"""Statuses of replies to a body that cannot be answered."""
_USE_MODEL = frozenset({"generation", "pooling", "prompts", "responses"})
"""Tags of the endpoints whose bodies are for a model."""
_KEY = "quire.endpoint"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path."""

    method: Method
    path: str
    handler: Handler
    """Takes the request; then what was read of its body or query, if it `takes` one of them.
    Returns a response, or a value that is its JSON, or None: an empty response."""
    tag: str
    takes: Literal["body", "form", "query", None]
    request: tuple[Any, ...]
    """Types of the JSON body, or of the form; none: no body."""
    query: Any
    """Type of the query's parameters; None: there are none."""
    response: tuple[Any, ...]
    """Types of the JSON answer; none: `media`, not JSON."""
    media: str
    """Empty: the answer has no body."""
    texts: tuple[str, ...]
    """Media types of answers that are text, where the request can ask for them."""
    stream: tuple[Any, ...]
    """Types of the events, where the request can ask for a stream."""
    has_named_events: bool
    """Events have names and no end mark; otherwise the last event is `[DONE]`."""
    errors: tuple[int, ...] | None
    """Statuses besides 200, 401 and 503; None: the usual ones."""
    can_be_unwell: bool
    """503 has the same body as 200."""
    switch: Switch | None
    """The switch that must be on; None: the endpoint always exists."""
    for_operator: bool
    """Whether it changes or shows what the holders of several API keys share."""
    gives: Gives
    """Result that a model must give to answer it, if a request names none."""
    takes_any_name: bool
    """Whether the one model answers requests that name an unknown one, as in the server whose API
    this is."""

    @staticmethod
    def of(request: Request) -> Endpoint:
        """The endpoint that answers a request."""
        found: Endpoint = request.scope[_KEY]
        return found

    def attach(self, request: Request) -> None:
        """Lets `of` find it."""
        request.scope[_KEY] = self

    @property
    def form(self) -> Literal["openai", "messages", "ollama"]:
        """Form of the error replies."""
        if self.path.startswith("/api/"):
            return "ollama"
        return "messages" if self.path.startswith("/v1/messages") else "openai"

    @property
    def statuses(self) -> tuple[int, ...]:
        """Statuses of error replies besides 401 and 503."""
        own = self._own_statuses
        return tuple(dict.fromkeys((*own, 403))) if self.for_operator else own

    @property
    def _own_statuses(self) -> tuple[int, ...]:
        if self.errors is not None:
            return self.errors
        if not self.request:
            return (400,) if self.tag in ("development", "kv store") else ()
        return (*BAD_BODY, 500) if self.uses_model and self.tag != "prompts" else BAD_BODY

    @property
    def uses_model(self) -> bool:
        """Whether the model that the body names must be loaded."""
        return bool(self.request) and self.tag in _USE_MODEL

    @property
    def takes_model_in_query(self) -> bool:
        """Whether it is for the engine of one model, which `?model=` chooses."""
        return self.switch in ("dev", "kv_store")

    @property
    def refuses_queries(self) -> bool:
        """Whether a query is an error."""
        return self.takes is None and self.switch in ("dev", "kv_store")


def route_path(scope: Scope) -> str:
    """The path without the server's `root_path`."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
