"""`Routes`, with which a module declares the endpoints that its functions answer."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.endpoint import Endpoint, Gives, Handler, Method, Switch

H = TypeVar("H", bound=Handler)
_FOR_ALL: frozenset[Switch | None] = frozenset({None, "tokenizer_info"})
"""Switches whose endpoints are for the holders of all keys; others are for the operator's."""
_GIVES: dict[str, Gives] = {"generation": "text", "responses": "text", "pooling": "pooled"}
"""By tag, for endpoints that do not say what they give."""


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


def _choices(kind: Any) -> list[Any]:
    """The types of a union, or the one type."""
    is_union = get_origin(kind) in (Union, UnionType)
    return list(get_args(kind)) if is_union else [kind]


def _each(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else () if kind is None else (kind,)
