"""Sends ASGI replies without a framework: a problem, or bytes."""

from __future__ import annotations

from starlette.types import Scope, Send

from quire.server.http.error_forms import for_route
from quire.server.http.problems import Problem


async def send_problem(scope: Scope, send: Send, problem: Problem) -> None:
    """Answers with an error body, in the form of the request's route."""
    problem = for_route(scope, problem)
    headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send_bytes(send, problem.status, problem.body(), headers)


async def send_bytes(
    send: Send,
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    content_type: bytes = b"application/json",
) -> None:
    """Answers with a whole body."""
    fields = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
