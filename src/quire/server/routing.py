"""`Endpoint`, and `Routes`, with which a module declares the endpoints that its functions
answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from quire.config.pooling import PoolingTask

Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)
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
_FOR_ALL: frozenset[Switch | None] = frozenset({None, "tokenizer_info"})
"""Switches whose endpoints are for the holders of all keys; others are for the operator's."""
_USE_MODEL = frozenset({"generation", "pooling", "prompts", "responses"})
"""Tags of the endpoints whose bodies are for a model."""
_GIVES: dict[str, Gives] = {"generation": "text", "responses": "text", "pooling": "pooled"}
"""By tag, for endpoints that do not say what they give."""
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


class Routes:
    """The endpoints of one module. `tag` and `switch` are those of most of them."""

    def __init__(
        self, tag: str, switch: Switch | None = None, *, takes_any_name: bool = False
    ) -> None:
        self._takes_any_name = takes_any_name
        self._tag = tag
        self._switch = switch
        self.endpoints: list[Endpoint] = []

    def on(
        self,
        method: Method,
        *paths: str,
        tag: str = "",
        request: Any = None,
        response: Any = None,
        texts: tuple[str, ...] = (),
        stream: Any = None,
        has_named_events: bool = False,
        media: str = "application/json",
        errors: tuple[int, ...] | None = None,
        can_be_unwell: bool = False,
        switch: Switch | None = None,
        for_operator: bool | None = None,
        gives: Gives | None = None,
    ) -> Callable[[H], H]:
        """Declares the endpoints that the decorated function answers. It is given the body if it
        has a second parameter, whose type is the body's; or the query or the form, if that is
        called `query` or `form`.

        `request`: the type, or a tuple of the types, of a body that the function reads itself.
        `for_operator`: by default those with a switch are.
        `response`: that of the JSON in responses that it makes itself; otherwise it is the type of
        what it returns.
        """

        needed = switch or self._switch
        is_operators = needed not in _FOR_ALL if for_operator is None else for_operator

        def declare(handler: H) -> H:
            hints = get_type_hints(handler)
            returned = _choices(hints.pop("return"))
            values = [one for one in returned if one not in (Response, ASGIApp, type(None))]
            taken = list(hints.items())[1:]
            query = next((kind for name, kind in taken if name == "query"), None)
            body = next((kind for name, kind in taken if name != "query"), None)
            for path in paths:
                self.endpoints.append(Endpoint(
                    method=method,
                    path=path,
                    handler=handler,
                    tag=tag or self._tag,
                    takes="query" if query else "form" if "form" in hints else
                    "body" if body else None,
                    request=_each(request or body),
                    query=query,
                    response=_each(response) or tuple(values),
                    media="" if returned == [type(None)] else media,
                    texts=texts,
                    stream=_each(stream),
                    has_named_events=has_named_events,
                    errors=errors,
                    can_be_unwell=can_be_unwell,
                    switch=needed,
                    for_operator=is_operators,
                    takes_any_name=self._takes_any_name,
                    gives=gives or _GIVES.get(tag or self._tag, "anything"),
                ))  # fmt: skip
            return handler

        return declare


def route_path(scope: Scope) -> str:
    """The path without the server's `root_path`."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _choices(kind: Any) -> list[Any]:
    """The types of a union, or the one type."""
    is_union = get_origin(kind) in (Union, UnionType)
    return list(get_args(kind)) if is_union else [kind]


def _each(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else () if kind is None else (kind,)
