"""A client for OpenAI-compatible servers, for `quire chat` and `quire complete`.

Uses only the standard library. It handles HTTP, JSON and server-sent events, and no terminal I/O.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from quire.errors import ConfigError, QuireError, reason

_NEUTRAL = {
    "temperature": "1.0", "top_p": "1.0, all tokens", "top_k": "0, all tokens",
    "min_p": "0.0, all tokens", "presence_penalty": "0.0, none",
    "max_tokens": "as the context has room for", "seed": "random",
    "stop": "none",
}  # fmt: skip
"""Values of settings without any default."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Origins of a setting's value if the user has not set it."""

    model: Mapping[str, Any]
    """Defaults recommended by the checkpoint; the engine applies them itself."""
    chat: Mapping[str, Any]
    """Additional defaults for chats with people (`chat_sampling_params`)."""

    def shown(self, name: str) -> str:
        """The value of a setting and its origin, as text."""
        if name in self.chat:
            return f"{self.chat[name]} (default)"
        if name in self.model:
            return f"{self.model[name]} (the model's default)"
        return f"{_NEUTRAL[name]} (default)"


_TIMEOUT_S = 600.0
"""Timeout of one read: a long prompt may take minutes on a loaded CPU."""
_MAX_REPLY_BYTES = 64 * 1024 * 1024
_MAX_EVENT_BYTES = 8 * 1024 * 1024


class ServerError(QuireError):
    """The server cannot be reached, or refused the request."""


@dataclass(slots=True)
class Piece:
    """The contents of one stream event: new text, and token counts if the server sent them."""

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    """Parts of tool calls, as the server sent them."""
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None


@dataclass(slots=True)
class Server:
    """One server, given by the URL of its API (`http://host:port/v1`); `/v1` is optional.

    Each request has its own connection; closing it early makes the server stop the request.
    """

    url: str
    api_key: str | None = None
    _headers: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
            is_known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a wrong port, or half an address
            is_known = False
        if not is_known:
            raise ConfigError(f"--url {self.url!r} must be a URL like http://localhost:8000/v1")
        if parts.path in ("", "/"):
            parts = parts._replace(path="/v1")
        self.url = parts.geturl().rstrip("/")
        key = self.api_key or os.environ.get("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def models(self) -> list[dict[str, Any]]:
        """The models that the server lists. Raises ServerError."""
        found = self._get("/models").get("data")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise ServerError(f"{self.url}/models lists no model")
        return found

    def first_model(self) -> str:
        """The id of the first model that the server lists. Raises ServerError if there is none."""
        try:
            return str(self.models()[0]["id"])
        except LookupError:
            raise ServerError(f"{self.url}/models lists no model") from None

    def live(self) -> dict[str, Any]:
        """The state of a Quire server: `GET /quire/live`. Raises ServerError."""
        return self._get("/quire/live", has_version=False)

    def sampling_defaults(self) -> SamplingDefaults | None:
        """The sampling defaults of a Quire server; None for other servers, or while it loads."""
        try:
            sampling = self.live()["sampling"]
            return SamplingDefaults(dict(sampling["model"]), dict(sampling["chat"]))
        except (ServerError, LookupError, ValueError, TypeError):
            return None

    def unload(self, model: str) -> None:
        """Unload one of several models. Raises ServerError."""
        if not any("status" in card for card in self.models()):
            raise ServerError(
                f"{self.url} keeps its model loaded; a server of several models unloads them"
            )
        self._call("POST", "/models/unload", {"model": model})

    def _get(self, path: str, *, has_version: bool = True) -> dict[str, Any]:
        return self._call("GET", path, None, has_version=has_version)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, has_version: bool = True
    ) -> dict[str, Any]:
        connection, response = self._send(method, path, body, has_version=has_version)
        try:
            found = json.loads(response.read(_MAX_REPLY_BYTES))
            if isinstance(found, dict):
                return found
            raise ServerError(f"{self.url}: {path} did not answer a JSON object")
        except (ValueError, OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url}: {path} did not answer JSON: {error}") from None
        finally:
            response.close()
            connection.close()

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Piece]:
        """Post a streaming request and yield its pieces as they arrive."""
        payload = {**body, "stream": True, "stream_options": {"include_usage": True}}
        connection, response = self._send("POST", path, payload)
        try:
            for event in _events(response):
                yield _piece(event)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the connection to {self.url} broke: {error}") from None
        finally:
            response.close()
            connection.close()

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, has_version: bool = True
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request. `has_version`: the path is below `/v1`."""
        connection = self._connect()
        base = urlsplit(self.url).path.rstrip("/")
        target = (base if has_version else base.removesuffix("/v1")) + path
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, target, data, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServerError(
                f"no server answers at {self.url} ({reason(error)}); start one with `quire serve`"
            ) from None
        if response.status != 200:
            text = response.read(_MAX_REPLY_BYTES).decode(errors="replace")
            connection.close()
            place = f" at {target}" if response.status == 404 else ""
            raise ServerError(_refusal(response.status, place, text))
        return connection, response

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_S)
        return http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_S)


def _events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """Yields the JSON of each `data:` line until `[DONE]`; ignores comments and other fields."""
    while line := response.readline(_MAX_EVENT_BYTES):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            yield json.loads(data)
        except ValueError:
            raise ServerError(f"the server sent an event that is not JSON: {data[:80]!r}") from None
    raise ServerError("the server closed the stream before its end")


def _piece(event: Any) -> Piece:
    if not isinstance(event, dict):
        raise ServerError(f"the server sent an event that is not an object: {event!r:.80}")
    if "error" in event:
        raise ServerError(_message_of(event["error"]))
    piece = Piece(usage=event.get("usage"))
    try:
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            piece.text += choice.get("text") or delta.get("content") or ""
            piece.reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""
            piece.calls += delta.get("tool_calls") or []
            piece.finish_reason = choice.get("finish_reason") or piece.finish_reason
    except (AttributeError, TypeError):
        raise ServerError(
            f"the server sent an event that does not belong to a completion: {event!r:.80}"
        ) from None
    return piece


def _refusal(status: int, place: str, text: str) -> str:
    try:
        message = _message_of(json.loads(text)["error"])
    except (ValueError, LookupError, TypeError):
        message = text.strip()[:200]
    hint = "; give the key with --api-key or OPENAI_API_KEY" if status == 401 else ""
    return f"the server answered {status}{place}: {message}{hint}"


def _message_of(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
