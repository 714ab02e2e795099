"""`/v1/completions`: the request, the reply, and the chunks of a streamed one."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from quire.server.requests.fields import (
    DEFAULT_MAX_TOKENS,
    ChunkFields,
    CompletionLogprobs,
    Count,
    FinishReasonText,
    GenerationFields,
    Int64,
    ReplyPromptLogprobs,
    TokenId,
    WholeReplyFields,
)


class CompletionRequest(GenerationFields, kw_only=True):
    """A prompt, or several, to be continued."""

    token_ids_field: ClassVar[str] = "prompt"
    """The field that may hold a long list of token ids, which is decoded in pieces."""
    default_max_tokens: ClassVar[int | None] = DEFAULT_MAX_TOKENS

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    max_tokens: Int64 | None = DEFAULT_MAX_TOKENS
    echo: bool | None = False
    """Begin the reply with the prompt."""
    logprobs: Int64 | None = None
    add_special_tokens: bool | None = True
    """Begin text prompts with the model's start token, if it has one."""
    suffix: str | None = None
    """Text after the gap that the reply fills, for models with tokens for that."""
    prompt_embeds: str | list[str] | None = None
    """Embeddings in place of tokens, [tokens, hidden size]: base64 of a safetensors file, a NumPy
    file, or a file of torch.save; or a list of these. They come before the prompts of `prompt`."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One continuation, or the new part of one in a stream."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReasonText | None = None
    stop_reason: int | str | None = None
    """The stop string or token that ended it; null for end-of-sequence and all other ends."""
    token_ids: list[TokenId] | None = None
    prompt_logprobs: ReplyPromptLogprobs | None = None
    prompt_token_ids: list[TokenId] | None = None


class CompletionResponse(WholeReplyFields, kw_only=True):
    """A whole reply."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class CompletionChunk(ChunkFields, kw_only=True):
    """One event of a streamed reply."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
