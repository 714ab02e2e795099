"""From a request's prompt or messages to token ids: what the engine is given, exactly.

Used by generation, `/tokenize` and the render endpoints alike, so that what they show is what
runs. Long texts are tokenised on a thread, beside the event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quire.chat.job import ChatInput
from quire.errors import RequestError
from quire.inputs import TokensPrompt
from quire.server.context import THREAD_ABOVE_CHARS, ServerContext
from quire.server.schema.chat import ChatMessage, ChatRequest
from quire.server.schema.completion import CompletionRequest
from quire.server.schema.service import TokenizeRequest
from quire.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt as the engine will see it."""

    token_ids: list[int]
    text: str | None
    """None where the caller sent token ids."""
    cache_salt: str | None = None

    def for_engine(self) -> TokensPrompt:
        """In the form that `generate` takes."""
        prompt: dict[str, Any] = {"prompt_token_ids": self.token_ids}
        if self.text is not None:
            prompt["prompt"] = self.text
        if self.cache_salt is not None:
            prompt["cache_salt"] = self.cache_salt
        return prompt  # type: ignore[return-value]


async def completion_prompts(
    context: ServerContext, request: CompletionRequest
) -> list[PreparedPrompt]:
    """The prompts of a completion request, in order. Raises RequestError."""
    held = request.prompt
    salt = request.cache_salt
    add_special_tokens = request.add_special_tokens is not False
    parts = _split_prompts(held, context.args.max_prompts)
    prompts = []
    for part in parts:
        if isinstance(part, str):
            token_ids = await encode(context, part, add_special_tokens)
            prompts.append(PreparedPrompt(token_ids, part, salt))
        else:
            prompts.append(PreparedPrompt(part, None, salt))
    return prompts


def _split_prompts(held: Any, max_prompts: int) -> list[str | list[int]]:
    if isinstance(held, str):
        return [held]
    if not held:
        raise RequestError("prompt must not be empty", parameter="prompt")
    if isinstance(held[0], int):
        if not all(isinstance(entry, int) for entry in held):
            raise _mixed()
        return [held]
    if len(held) > max_prompts:
        raise RequestError(
            f"{len(held)} prompts are more than this server allows in one request "
            f"(max_prompts {max_prompts}).",
            parameter="prompt",
        )
    if not all(isinstance(entry, type(held[0])) for entry in held):
        raise _mixed()
    return list(held)


def _mixed() -> RequestError:
    return RequestError(
        "prompt must be a string, a list of strings, a list of token ids or a list of such lists; "
        "it holds different kinds",
        parameter="prompt",
    )


async def chat_prompt(
    context: ServerContext, request: ChatRequest | TokenizeRequest
) -> PreparedPrompt:
    """The prompt that the model's chat template makes of the messages. Raises RequestError."""
    messages = request.messages or []
    if len(messages) > context.args.max_messages:
        raise RequestError(
            f"{len(messages)} messages are more than this server allows in one request "
            f"(max_messages {context.args.max_messages}).",
            parameter="messages",
        )
    if request.chat_template is not None:
        raise RequestError(
            "chat_template is refused: this server trusts no template from a request; "
            "give it one with --chat-template",
            parameter="chat_template",
        )
    text = await context.chat_renderer().render(_chat_input(request, messages))
    token_ids = await encode(context, text, request.add_special_tokens is True)
    salt = request.cache_salt if isinstance(request, ChatRequest) else None
    return PreparedPrompt(token_ids, text, salt)


def _chat_input(request: ChatRequest | TokenizeRequest, messages: list[ChatMessage]) -> ChatInput:
    variables = request.chat_template_kwargs or {}
    if request.reasoning_effort is not None:
        variables = {**variables, "reasoning_effort": request.reasoning_effort}
    return ChatInput(
        messages,
        tools=request.tools or None,
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=request.continue_final_message is True,
        chat_template_kwargs=variables,
    )


async def encode(
    context: ServerContext, text: str, add_special_tokens: bool, *, must_fit: bool = True
) -> list[int]:
    """Token ids of a text. Raises RequestError if it is not valid Unicode, or (`must_fit`) so
    long that it cannot fit however it is cut into tokens, which costs nothing to find out."""
    tokenizer = context.tokenizer()
    try:
        num_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise RequestError("the prompt is not valid Unicode", parameter="prompt") from None
    if len(text) <= THREAD_ABOVE_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    limit, longest = context.config.model.max_model_len, _longest_piece_bytes(tokenizer)
    if must_fit and longest is not None and num_bytes > limit * longest:
        raise RequestError(
            f"This model's maximum context length is {limit} tokens. However, your prompt has "
            f"{num_bytes} bytes, which are more than {num_bytes // longest} tokens.",
            parameter="prompt",
        )
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


@lru_cache(maxsize=4)
def _longest_piece_bytes(tokenizer: Tokenizer) -> int | None:
    """Bytes of the longest token; None where tokens do not stand for bytes."""
    pieces = tokenizer.pieces
    if pieces is None:
        return None
    return max(len(pieces.piece_bytes(token_id)) for token_id in range(tokenizer.max_token_id + 1))
