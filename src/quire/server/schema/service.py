"""The smaller endpoints: models, tokenize, detokenize, render, load, version, health."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.schema.chat import ChatMessage, ReasoningEffort, Tool
from quire.server.schema.common import Count, TokenId


class ModelPermission(msgspec.Struct, kw_only=True):
    """What callers may do with a model; kept for clients that look for it."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    """A model that this server offers."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "quire"
    root: str | None = None
    parent: str | None = None
    max_model_len: Count
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, kw_only=True):
    """All models that this server offers: the served names of its one model."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, or a conversation, to be tokenized: exactly one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = None
    """By default true for a text and false for a conversation."""
    tools: list[Tool] | None = None
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    return_token_strs: bool | None = False


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The tokens of a prompt."""

    count: Count
    max_model_len: Count
    tokens: list[TokenId]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids to be turned into text."""

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text of some tokens, special ones included."""

    prompt: str


class RenderedPrompt(msgspec.Struct, kw_only=True):
    """What the engine would be given for one prompt."""

    request_id: str
    model: str
    prompt: str | None
    """The exact text; null where token ids were given."""
    token_ids: list[TokenId]
    sampling_params: dict[str, Any]
    cache_salt: str | None = None
    priority: int = 0
    stream: bool = False


class VersionResponse(msgspec.Struct, kw_only=True):
    """The server's version."""

    version: str


class LoadResponse(msgspec.Struct, kw_only=True):
    """How many generation requests are in flight."""

    server_load: Count


class StatusResponse(msgspec.Struct, kw_only=True):
    """A health check's answer."""

    status: str
    reason: str | None = None


class SessionRequest(msgspec.Struct, kw_only=True, rename="camel"):
    """Begins or ends a session of Amazon SageMaker's."""

    request_type: Literal["NEW_SESSION", "CLOSE"]
