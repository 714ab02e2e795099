"""Reads bodies of `/v1/chat/completions` and of its batches into requests for text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.errors import RequestError, quoted
from quire.server.apis.chat.schema import BatchChatRequest, ChatFields, ChatRequest
from quire.server.apis.chat.tools import tools_of_chat
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.messages import ChatMessage
from quire.server.generation.reading import (
    check_top,
    read_logprobs,
    read_prompt_logprobs,
    text_request,
)
from quire.server.generation.request import AnyRequest, Source, TextRequest
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.parsers.call_rules import StrictLevel


def read_chat(request: ChatRequest, level: StrictLevel = "auto") -> TextRequest[Conversation]:
    """`level`: how far arguments of tools follow their schemas. Raises RequestError."""
    return _read(request, _conversation(request, request.messages, level))


def read_batch(model: ServedModel, batch: BatchChatRequest) -> TextRequest[list[Conversation]]:
    """A request with several conversations. Raises RequestError."""
    for name, (neutral, what) in _REFUSED.items():
        value = getattr(batch, name)
        if value not in neutral:
            raise RequestError(
                f"Batch chat completions do not support {what}. Leave `{name}` at {neutral[-1]!r}, "
                "or send each conversation to /v1/chat/completions.",
                parameter=name,
            )
    if batch.n not in (None, 1):
        raise RequestError(
            "Batch chat completions do not support `n > 1`. Please set `n` to 1, got "
            f"{quoted(batch.n)}.",
            parameter="n",
            value=batch.n,
        )
    model.limits.check_prompts(len(batch.messages), 1, name="messages")
    level = model.args.tool_strict_level
    return _read(batch, [_conversation(batch, each, level) for each in batch.messages])


_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "stream": ((None, False), "streams"),
    "use_beam_search": ((None, False), "beam search"),
    "tools": ((None,), "tools"),
    "prompt_logprobs": ((None,), "`prompt_logprobs`, which a reply has for one prompt"),
    "return_prompt_text": ((None, False), "`return_prompt_text`, which is of one prompt"),
}
"""Fields of a chat that a batch does not have: the values without effect, and what they ask for."""


def _conversation(
    request: ChatFields, messages: list[ChatMessage], level: StrictLevel
) -> Conversation:
    forbids, use = request.tool_choice == "none", tools_of_chat(request, level)
    tools = request.tools
    return Conversation.of(messages, request, tools=tools, tool_use=use, forbids_calls=forbids)


def _read(request: ChatFields, prompt: Source) -> TextRequest[Source]:
    asked = text_request(request, prompt)
    if request.max_completion_tokens is not None:
        asked.max_tokens = request.max_completion_tokens
        asked.names["max_tokens"] = "max_completion_tokens"
    if request.prediction is not None:
        asked.predicted = request.prediction.text
    reply = asked.reply
    reply.has_prompt_text = request.return_prompt_text is True
    reply.shows_reasoning = request.include_reasoning is not False
    reply.reasoning_is_content = request.reasoning_format == "none"
    if request.reasoning_format == "deepseek":
        reply.reasoning_field = "reasoning_content"
    _read_logprobs(request, asked)
    read_prompt_logprobs(asked, request.prompt_logprobs)
    return asked


def _read_logprobs(request: ChatFields, asked: AnyRequest) -> None:
    asked.names["logprobs"] = "top_logprobs"
    top = request.top_logprobs
    if not request.logprob_token_ids:
        check_top("top_logprobs", top)
        if top and not request.logprobs:
            raise RequestError(
                "when using `top_logprobs`, `logprobs` must be set to true.",
                parameter="top_logprobs",
            )
    read_logprobs(asked, (top or 0) if request.logprobs else None, "must be set to true")
