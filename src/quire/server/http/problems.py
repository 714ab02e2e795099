"""Converts exceptions to HTTP error replies: status, error type, message, invalid field.

All routes and middleware use it, so that all errors have one form: `{"error": {"message", "type",
"param", "code"}}`. Names and statuses are vLLM's. (`error_forms` has the form of other APIs.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec

from quire.errors import (
    CapacityError,
    EngineDeadError,
    EngineGenerateError,
    QuireError,
    RequestError,
)
from quire.log import get_logger


class ErrorInfo(msgspec.Struct, kw_only=True):
    """Description of an error."""

    message: str
    type: str
    param: str | None = None
    """The field at fault."""
    code: int
    """The HTTP status."""


class ErrorResponse(msgspec.Struct, kw_only=True):
    """The body of every reply that is not a success."""

    error: ErrorInfo


logger = get_logger(__name__)
_TYPES = {
    400: "BadRequestError",
    401: "Unauthorized",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}
MAX_MESSAGE_CHARS = 2000
_MAX_PATH_CHARS = 600
"""Length of the end of a decoder's message, which locates the mistake in the body."""
_PATH = re.compile(r" - at `\$\.?([^`]{0,200})`$")
_MISSING_FIELD = re.compile(r"missing required field `([^`]{1,100})`")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer."""

    status: int
    message: str
    param: str | None = None
    type: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The JSON body."""
        kind = self.type or _TYPES.get(self.status) or HTTPStatus(self.status).phrase
        message = self.message[:MAX_MESSAGE_CHARS]
        info = ErrorInfo(message=message, type=kind, param=self.param, code=self.status)
        return msgspec.json.encode(ErrorResponse(error=info))

    def reply(self) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The headers and the body."""
        body = self.body()
        own = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        own.append((b"content-type", b"application/json"))
        own.append((b"content-length", b"%d" % len(body)))
        return own, body


class HttpError(Exception):
    """Raised by routes to answer with a Problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


_MAX_NAMED = 8


def not_found(model: str, served: Sequence[str]) -> HttpError:
    """No model of that name is served here; the message names those that are."""
    names = [f"`{name}`" for name in served[:_MAX_NAMED]]
    if len(served) > _MAX_NAMED:
        names.append(f"{len(served) - _MAX_NAMED} more, which /v1/models lists")
    message = f"The model `{model}` does not exist. This server has: {', '.join(names)}."
    return HttpError(Problem(404, message, param="model"))


def unavailable(message: str, retry_after_s: float = 1.0) -> Problem:
    """503, with the seconds after which the client should try again."""
    seconds = str(max(1, round(retry_after_s)))
    return Problem(503, message, type="Service Unavailable", headers={"Retry-After": seconds})


def all_in_use() -> Problem:
    """503 for a client that gets no connection."""
    return unavailable("All connections of this server are in use.")


def headers_too_late(seconds: float) -> Problem:
    """408 to a client whose request did not begin, or whose headers did not end, in time."""
    text = f"The request headers took longer than header_timeout {seconds:g} s to arrive."
    return Problem(408, text)


def body_too_late(seconds: float) -> Problem:
    """408 to a client whose body did not end in time."""
    return Problem(408, f"The request body took longer than body_timeout {seconds:g} s to arrive.")


def problem_of(error: BaseException) -> Problem:
    """The reply to an exception. An unexpected one is logged, and its reply has no details."""
    if isinstance(error, HttpError):
        return error.problem
    if isinstance(error, RequestError):
        return Problem(400, str(error), param=error.parameter)
    if isinstance(error, CapacityError):
        return unavailable(str(error), error.retry_after_s)
    if isinstance(error, EngineDeadError):
        return unavailable(str(error), 5.0)
    if isinstance(error, (EngineGenerateError, QuireError)):
        return Problem(500, str(error))
    logger.error("a request failed unexpectedly", exc_info=error)
    return Problem(500, "The server failed on this request; its log has the details.")


def decode_problem(error: Exception) -> Problem:
    """The reply to a body that is invalid JSON or does not match the schema."""
    if isinstance(error, RecursionError):
        return Problem(400, "The JSON body is nested too deeply.", type="Bad Request")
    if isinstance(error, UnicodeDecodeError):
        return Problem(400, "The JSON body is not valid UTF-8.", type="Bad Request")
    text = str(error)
    if len(text) > MAX_MESSAGE_CHARS:  # it quotes a large value
        text = f"{text[: MAX_MESSAGE_CHARS // 2]} ... {text[-_MAX_PATH_CHARS:]}"
    where = _PATH.search(text) or _MISSING_FIELD.search(text)
    param = where.group(1) if where and where.group(1) else None
    return Problem(400, f"Invalid request body: {text}", param=param, type="Bad Request")


MESSAGES_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
OLLAMA_PREFIX = "/api/"
