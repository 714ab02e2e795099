"""`/tokenize` and `/detokenize`: requests and replies."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from quire.server.conversation.messages import PromptFields
from quire.server.generation.request_fields import Count, TokenId


class TokenizeRequest(PromptFields, kw_only=True):
    """A text, or a conversation, to be tokenized: exactly one of `prompt` and `messages`."""


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The tokens of a prompt."""

    count: Count
    max_model_len: Count
    tokens: list[TokenId]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids to be turned into text."""

    token_ids_field: ClassVar[str] = "tokens"

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text of some tokens, special ones included."""

    prompt: str
    content: str
    """The same, by llama-server's name."""
