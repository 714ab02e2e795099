"""`/v1/completions`: the request, the reply, and the chunks of a streamed one."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from quire.server.requests import fields


class CompletionRequest(fields.GenerationFields, kw_only=True):
    """A prompt, or several, to be continued."""

    token_ids_field: ClassVar[str] = "prompt"
    """The field that may hold a long list of token ids, which is decoded in pieces."""
    default_max_tokens: ClassVar[int | None] = fields.DEFAULT_MAX_TOKENS

    prompt: str | list[str | fields.TokenId | list[fields.TokenId]] | None = None
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    max_tokens: fields.Int64 | None = fields.DEFAULT_MAX_TOKENS
    echo: bool | None = False
    """Begin the reply with the prompt."""
    logprobs: fields.Int64 | None = None
    add_special_tokens: bool | None = True
    """Begin text prompts with the model's start token, if it has one."""
    suffix: str | None = None
    """Text after the gap that the reply fills, for models with tokens for that."""
    prompt_embeds: str | list[str] | None = None
    """Embeddings in place of tokens, [tokens, hidden size]: base64 of a safetensors file, a NumPy
    file, or a file of torch.save; or a list of these. They come before the prompts of `prompt`."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One continuation, or the new part of one in a stream."""

    index: fields.Count
    text: str
    logprobs: fields.CompletionLogprobs | None = None
    finish_reason: fields.FinishReasonText | None = None
    stop_reason: int | str | None = None
    """The stop string or token that ended it; null for end-of-sequence and all other ends."""
    token_ids: list[fields.TokenId] | None = None
    prompt_logprobs: fields.ReplyPromptLogprobs | None = None
    prompt_token_ids: list[fields.TokenId] | None = None


class CompletionResponse(fields.WholeReplyFields, kw_only=True):
    """A whole reply."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class CompletionChunk(fields.ChunkFields, kw_only=True):
    """One event of a streamed reply."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
