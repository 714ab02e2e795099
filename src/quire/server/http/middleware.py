"""The layers around the application: limits of bodies, ids of requests; and the header of replies
that reports fields without effect.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.log import get_logger
from quire.metrics.http_metrics import HttpMetrics
from quire.server.endpoint import route_path
from quire.server.http.error_forms import send_problem
from quire.server.http.problems import MESSAGES_PATHS, HttpError, Problem, problem_of, unavailable


class BodyMiddleware:
    """Counts the bytes of a body while it arrives, independent of its headers.

    Answers 413 to a body that is too large, and 503 if all bodies that are arriving are too large
    together. Never keeps more bytes than these limits. Of a form, only the beginning is kept in
    memory, so that only this counts for all bodies together.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        max_pending_body_bytes: int,
        max_form_bytes: int,
        form_paths: Collection[str],
        form_bytes_in_memory: int,
    ) -> None:
        """`form_paths`: the routes whose bodies are forms."""
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_form_bytes = max_form_bytes
        self._form_paths = form_paths
        self._form_bytes_in_memory = form_bytes_in_memory
        self._max_pending_bytes = max_pending_body_bytes
        self._num_pending_bytes = 0
        """Bytes of all bodies that are not complete."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_form = route_path(scope) in self._form_paths
        option = "max_form_bytes" if is_form else "max_body_bytes"
        most = self._max_form_bytes if is_form else self._max_body_bytes
        if _content_length(scope["headers"]) > most:
            await send_problem(scope, send, _too_large(option, most))
            return
        num_bytes = num_pending = 0

        async def bounded_receive() -> Message:
            nonlocal num_bytes, num_pending
            message = await receive()
            size = len(message.get("body", b""))
            num_bytes += size
            if num_bytes > most:
                raise HttpError(_too_large(option, most))
            if message.get("more_body", False):
                size = 0 if is_form and num_bytes > self._form_bytes_in_memory else size
                num_pending += size
                self._num_pending_bytes += size
                if self._num_pending_bytes > self._max_pending_bytes:
                    raise HttpError(unavailable("Too much is being sent to this server.", 1))
            else:
                self._num_pending_bytes -= num_pending
                num_pending = 0
            return message

        try:
            await self._app(scope, bounded_receive, send)
        finally:
            self._num_pending_bytes -= num_pending


def _too_large(option: str, most: int) -> Problem:
    text = f"The request body is larger than {option} {most}."
    return Problem(413, text, headers={"Connection": "close"})


# --- fields without effect

fields_logger = get_logger("quire.server.http.ignored_fields")
IGNORED_HEADER = "X-Quire-Ignored-Fields"
_STATE_KEY = "ignored_fields"
_MAX_NAMES = 16
"""Most names in one header; the rest is counted."""
_MAX_NAME_CHARS = 64
_MAX_LOGGED = 256
"""Most names in the log of one server."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class IgnoredFields:
    """Reports which fields of a request have no effect: in a header of the reply, and for each name
    once in the log. Owned by the event loop.

    Names come from callers: they are bounded in number and length, and hold no character that could
    end a header or a line of the log.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()
        """Names that this server has logged."""

    def tell(self, request: Request, names: Iterable[str]) -> None:
        """Adds names to the header of the request's reply."""
        state = request.scope.setdefault("state", {})
        reported = state.setdefault(_STATE_KEY, _Reported(self)).names
        reported += (_UNSAFE.sub("?", name[:_MAX_NAME_CHARS]) or "?" for name in names)

    def log(self, names: Iterable[str]) -> None:
        """Logs names of a request that was accepted, each once."""
        for name in names:
            if name not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(name)
                fields_logger.warning(
                    "A request has the field %s, which has no effect here; the header %s of each "
                    "reply names such fields (this line comes once for each name).",
                    name,
                    IGNORED_HEADER,
                )


@dataclass(frozen=True, slots=True)
class _Reported:
    """The names of one request."""

    owner: IgnoredFields
    names: list[str] = field(default_factory=list)


def ignored_header(scope: Scope, status: int) -> list[tuple[bytes, bytes]]:
    """The header of a request's reply; none if no field was ignored. Logs the names, unless the
    request is refused: then the refusal may be of such a field."""
    reported: _Reported | None = scope["state"].get(_STATE_KEY)
    if reported is None or not reported.names:
        return []
    if status < HTTPStatus.BAD_REQUEST:
        reported.owner.log(reported.names)
    names = reported.names[:_MAX_NAMES]
    if len(reported.names) > _MAX_NAMES:
        names.append(f"and-{len(reported.names) - _MAX_NAMES}-more")
    return [(IGNORED_HEADER.lower().encode(), ", ".join(names).encode())]


# --- ids of requests

logger = get_logger("quire.server.access")

_WELL_FORMED = re.compile(rb"[A-Za-z0-9._~:/+=@,-]+")
_QUIET_PATHS = frozenset({
    "/health", "/v1/health", "/live", "/ready", "/readyz", "/ping", "/metrics", "/load",
    "/quire/live",
})  # fmt: skip


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
                    *ignored_header(scope, status),
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
    value = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(value[:19]) if value.isdigit() else 0
