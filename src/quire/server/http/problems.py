"""Converts exceptions to HTTP error replies: status, error type, message, invalid field.

All routes and middleware use it, so that all errors have one form: `{"error": {"message", "type",
"param", "code"}}`. Names and statuses are vLLM's. (`error_forms` has the form of other APIs.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import Scope

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


class MessagesError(msgspec.Struct, kw_only=True):
    """Description of an error."""

    type: str
    message: str
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """Facts that clients need in order to ask in another way."""


class MessagesErrorResponse(msgspec.Struct, kw_only=True, tag="error"):
    """The body of every reply that is not a success, and the last event of a stream that failed."""

    error: MessagesError


MESSAGES_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
_DETAILS: dict[str | None, dict[str, Any]] = {
    "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
}
"""Details by the refused field: they make Anthropic's clients try again without
it."""
_TOO_LONG = ("input_tokens", "input_text")
"""Parameters of errors about the length of a prompt: Anthropic's clients look for these words,
and then shorten the conversation."""
OVERLOADED = 529
"""Replaces 503 in Anthropic's form."""
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class MessagesProblem(Problem):
    """An error reply in the form of the Messages API."""

    def body(self) -> bytes:
        """The JSON body."""
        other = "invalid_request_error" if self.status < 500 else "api_error"
        message = self.message[:MAX_MESSAGE_CHARS]
        error = MessagesError(
            type=_ANTHROPIC_TYPES.get(self.status, other),
            message=message,
            details=_DETAILS.get(self.param, msgspec.UNSET),
        )
        return msgspec.json.encode(MessagesErrorResponse(error=error))


def messages_problem(problem: Problem) -> MessagesProblem:
    """The problem in the form of the Messages API."""
    status, message = OVERLOADED if problem.status == 503 else problem.status, problem.message
    if problem.param in _TOO_LONG:
        message = f"prompt is too long: {message}"
    return MessagesProblem(status, message, problem.param, headers=problem.headers)


class OllamaErrorResponse(msgspec.Struct, kw_only=True):
    """The body of every reply of Ollama's routes that is not a success, and the last line of a
    stream that failed."""

    error: str


OLLAMA_PREFIX = "/api/"


@dataclass(frozen=True, slots=True)
class OllamaProblem(Problem):
    """An error reply in Ollama's form."""

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(OllamaErrorResponse(error=self.message[:MAX_MESSAGE_CHARS]))


def ollama_problem(problem: Problem) -> OllamaProblem:
    """The problem in Ollama's form."""
    return OllamaProblem(problem.status, problem.message, headers=problem.headers)


def for_route(scope: Scope, problem: Problem) -> Problem:
    """The problem in the form of the request's route."""
    path = route_path(scope)
    if path.startswith(OLLAMA_PREFIX):
        return ollama_problem(problem)
    return messages_problem(problem) if path in MESSAGES_PATHS else problem


def route_path(scope: Scope) -> str:
    """The path without the server's `root_path`."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
