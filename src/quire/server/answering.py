"""`answered`: calls an endpoint's function with what it takes of a request: body, form or query;
`with_error_replies`: makes replies of errors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from quire.log import get_logger
from quire.server.bodies.forms import read_form, read_query
from quire.server.bodies.json_http import is_json, json_response, read_body
from quire.server.bodies.uploads import freed_on_error
from quire.server.endpoint import Endpoint
from quire.server.http.auth import check_operator
from quire.server.http.error_forms import for_route
from quire.server.http.presence import while_present
from quire.server.http.problems import Problem, problem_of
from quire.units import KiB

logger = get_logger("quire.server.app")
_WATCHED_BYTES = 256 * KiB
"""Bytes of a body. A larger one may take so long that its client disconnects meanwhile."""


async def answered(endpoint: Endpoint, request: Request) -> Any:
    """Reads what the endpoint's function takes, and makes a reply of what it returns."""
    if endpoint.for_operator:
        check_operator(request.scope)
    endpoint.attach(request)
    given: list[Any] = [request]
    files: tuple[object, ...] = ()
    if endpoint.takes == "body":
        given.append(await read_body(request, endpoint.request[0]))
    elif endpoint.takes == "form":
        given.append(await read_form(request, endpoint.request[0]))
        files = msgspec.structs.astuple(given[1])
    elif endpoint.takes == "query":
        given.append(read_query(request, endpoint.query))
    elif endpoint.refuses_queries:
        read_query(request, _NoQuery)
    with freed_on_error(files) if files else nullcontext():
        value = await endpoint.handler(*given)
    if value is None:
        return Response()
    return value if callable(value) else json_response(value)


class _NoQuery(msgspec.Struct):
    """No parameters."""


def with_error_replies(handler: Callable[..., Any], logs_stack: bool) -> Callable[..., Any]:
    """Wraps a handler: errors become error replies; a client's disconnect is not an error.
    `logs_stack`: every error is logged with its stack."""

    handler = contained(handler)

    async def endpoint(request: Request) -> Any:
        try:
            is_read = request.method == "POST" and is_json(request)
            if is_read and len(await request.body()) > _WATCHED_BYTES:
                return await while_present(request, handler(request))
            return await handler(request)
        except ClientDisconnect:
            return Response()
        except Exception as error:
            if logs_stack:
                logger.info("a request is answered with an error", exc_info=error)
            return error_reply(request, problem_of(error))

    return endpoint


def contained(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, where what ends the event loop, also from a child task, becomes another error: a
    plug-in or users' middleware may call `sys.exit`."""

    async def calling(*args: Any) -> Any:
        try:
            return await call(*args)
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return calling


def error_reply(request: Request, problem: Problem) -> Response:
    """An error in the form of the request's route."""
    problem = for_route(request.scope, problem)
    return Response(
        problem.body(), problem.status, headers=problem.headers, media_type="application/json"
    )
