"""Error replies in the form of a request's route: OpenAI's, Anthropic's or Ollama's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Scope, Send

from quire.server.endpoint import route_path
from quire.server.http.problems import MAX_MESSAGE_CHARS, MESSAGES_PATHS, OLLAMA_PREFIX, Problem


class MessagesError(msgspec.Struct, kw_only=True):
    """Description of an error."""

    type: str
    message: str
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """Facts that clients need in order to ask in another way."""


class MessagesErrorResponse(msgspec.Struct, kw_only=True, tag="error"):
    """The body of every reply that is not a success, and the last event of a stream that failed."""

    error: MessagesError


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


@dataclass(frozen=True, slots=True)
class OllamaProblem(Problem):
    """An error reply in Ollama's form."""

    def body(self) -> bytes:
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


async def send_problem(scope: Scope, send: Send, problem: Problem) -> None:
    """Answers with an error body, in the form of the request's route."""
    problem = for_route(scope, problem)
    headers, body = problem.reply()
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
