"""The outermost middleware: gives every request an id and returns it, names the fields of it that
were ignored, writes the access log line, and answers exceptions that no other layer has handled.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.log import get_logger
from quire.metrics.http_metrics import HttpMetrics
from quire.server.http import ignored_fields
from quire.server.http.error_forms import MESSAGES_PATHS, route_path
from quire.server.http.problems import Problem, problem_of
from quire.server.http.responses import send_problem

logger = get_logger("quire.server.access")

_WELL_FORMED = re.compile(rb"[A-Za-z0-9._~:/+=@,-]+")
_QUIET_PATHS = frozenset(
    {"/health", "/live", "/ready", "/ping", "/metrics", "/load", "/quire/live"}
)


class RequestIdMiddleware:
    """Puts `request_id` into the request's state: the caller's `X-Request-Id` if it sent one,
    random otherwise. The engine has its own request ids; this one is for logs and replies only.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_chars: int,
        has_access_log: bool,
        http_metrics: HttpMetrics,
        quiet_paths: Iterable[str] = (),
    ) -> None:
        """`quiet_paths`: further paths without an access log line."""
        self._app = app
        self._http_metrics = http_metrics
        self._max_chars = max_chars
        self._has_access_log = has_access_log
        self._quiet_paths = _QUIET_PATHS | frozenset(quiet_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        is_valid = given is None or self._is_valid(given)
        request_id = given.decode() if given and is_valid else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status, reply_bytes = 0, 0

        async def send_with_id(message: Message) -> None:
            nonlocal status, reply_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                reply_bytes = _content_length(message.get("headers", ()))
                message["headers"] = [
                    *message.get("headers", []),
                    *((name, request_id.encode()) for name in _names(scope)),
                    *ignored_fields.header_of(scope, status),
                ]
            await send(message)

        begin = time.perf_counter()
        try:
            if is_valid:
                await self._app(scope, receive, send_with_id)
            else:
                await send_problem(scope, send_with_id, self._refusal())
        except Exception as error:
            if status:
                raise  # the answer has begun: the connection is cut
            await send_problem(scope, send_with_id, problem_of(error))
        finally:
            seconds = time.perf_counter() - begin
            self._http_metrics.observe(
                route_path(scope),
                scope["method"],
                status,
                seconds,
                _content_length(scope["headers"]),
                reply_bytes,
            )
            self._log(scope, status, seconds, request_id)

    def _is_valid(self, value: bytes) -> bool:
        return len(value) <= self._max_chars and _WELL_FORMED.fullmatch(value) is not None

    def _refusal(self) -> Problem:
        return Problem(
            400,
            f"X-Request-Id must be 1 to {self._max_chars} characters out of letters, digits "
            "and ._~:/+=@,-",
            param="X-Request-Id",
        )

    def _log(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        if self._has_access_log and route_path(scope) not in self._quiet_paths:
            client = scope.get("client")
            logger.info(
                "%s %s %s -> %s in %.3f s (%s)",
                f"{client[0]}:{client[1]}" if client else "-",
                scope["method"],
                scope["path"][:200],
                status or "gone",
                seconds,
                request_id,
            )


def _names(scope: Scope) -> tuple[bytes, ...]:
    """The headers that return the id: Anthropic's clients read another one."""
    is_messages = route_path(scope) in MESSAGES_PATHS
    return (b"x-request-id", b"request-id") if is_messages else (b"x-request-id",)


def _content_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Bytes of a body, as its header says; 0 without one."""
    value = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(value) if value.isdigit() and len(value) < 20 else 0
