"""All endpoints in one table, from which both the router and the OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from quire.server.routes import generate, page, service, text
from quire.server.schema import chat, completion
from quire.server.schema import service as schema

Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path."""

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    tag: str
    request: Any = None
    """Type of the JSON body; None: no body."""
    response: Any = None
    """Type of the JSON answer; None: `media`, not JSON."""
    media: str = "application/json"
    stream: Any = None
    """Type of the events, where the request can ask for a stream."""
    errors: tuple[int, ...] = ()
    """Statuses besides 200, 401 and 503."""
    can_be_unwell: bool = False
    """503 has the same body as 200."""


_BAD_BODY = (400, 404, 408, 413, 415)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST", "/v1/completions", generate.completions, "generation",
        completion.CompletionRequest, completion.CompletionResponse,
        stream=completion.CompletionChunk, errors=(*_BAD_BODY, 500),
    ),
    Endpoint(
        "POST", "/v1/chat/completions", generate.chat_completions, "generation",
        chat.ChatRequest, chat.ChatResponse, stream=chat.ChatChunk, errors=(*_BAD_BODY, 500),
    ),
    Endpoint(
        "POST", "/v1/completions/render", text.render_completion, "prompts",
        completion.CompletionRequest, list[schema.RenderedPrompt], errors=_BAD_BODY,
    ),
    Endpoint(
        "POST", "/v1/chat/completions/render", text.render_chat, "prompts",
        chat.ChatRequest, schema.RenderedPrompt, errors=_BAD_BODY,
    ),
    Endpoint(
        "POST", "/tokenize", text.tokenize, "prompts",
        schema.TokenizeRequest, schema.TokenizeResponse, errors=_BAD_BODY,
    ),
    Endpoint(
        "POST", "/detokenize", text.detokenize, "prompts",
        schema.DetokenizeRequest, schema.DetokenizeResponse, errors=_BAD_BODY,
    ),
    Endpoint("GET", "/v1/models", service.models, "models", response=schema.ModelList),
    Endpoint(
        "GET", "/v1/models/{model_id}", service.model, "models",
        response=schema.ModelCard, errors=(404,),
    ),
    Endpoint("GET", "/version", service.version, "server", response=schema.VersionResponse),
    Endpoint("GET", "/load", service.load, "server", response=schema.LoadResponse),
    Endpoint(
        "GET", "/live", service.live, "health",
        response=schema.StatusResponse, can_be_unwell=True,
    ),
    Endpoint(
        "GET", "/ready", service.ready, "health",
        response=schema.StatusResponse, can_be_unwell=True,
    ),
    Endpoint(
        "GET", "/health", service.health, "health",
        response=schema.StatusResponse, can_be_unwell=True,
    ),
    Endpoint("GET", "/metrics", service.metrics, "server", media="text/plain"),
    Endpoint("GET", "/quire/live", page.live_view, "server", response=dict[str, Any]),
)  # fmt: skip
