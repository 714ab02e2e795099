"""`/v1/messages` and `/v1/messages/count_tokens`, in Anthropic's form: replies, events, errors."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.server.http.error_forms import MessagesErrorResponse
from quire.server.requests.fields import Count

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal",
    "model_context_window_exceeded",
]  # fmt: skip


class MessagesTokensDetails(msgspec.Struct, kw_only=True):
    """Kinds of tokens in a reply."""

    thinking_tokens: Count


class MessagesUsage(msgspec.Struct, kw_only=True):
    """Token counts. The sum of the three kinds of input tokens is the length of the prompt."""

    input_tokens: Count = 0
    """Prompt tokens that were not found in the prefix cache."""
    cache_creation_input_tokens: Count = 0
    """Always 0: keeping a prompt costs nothing here."""
    cache_read_input_tokens: Count = 0
    """Prompt tokens that were found in the prefix cache."""
    output_tokens: Count = 0
    """Tokens of the reply so far, including reasoning and calls."""
    output_tokens_details: MessagesTokensDetails | msgspec.UnsetType = msgspec.UNSET
    """Present once a reply of a reasoning model is complete."""


class TextBlock(msgspec.Struct, kw_only=True, tag="text"):
    """A part of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, tag="thinking"):
    """Reasoning."""

    thinking: str
    signature: str = ""
    """A digest of the reasoning; it is not checked when it comes back."""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: msgspec.Raw
    """A JSON object; what is complete of it, if the call was cut short."""


ReplyBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesReply(msgspec.Struct, kw_only=True, tag="message"):
    """A whole reply, or its frame in a stream."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ReplyBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    """The string that ended it, with the stop reason `stop_sequence`."""
    usage: MessagesUsage


class MessageStart(msgspec.Struct, kw_only=True, tag="message_start"):
    """The first event: the frame, without content."""

    message: MessagesReply


class BlockStart(msgspec.Struct, kw_only=True, tag="content_block_start"):
    """A block begins, empty."""

    index: Count
    content_block: ReplyBlock


class TextDelta(msgspec.Struct, kw_only=True, tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, kw_only=True, tag="thinking_delta"):
    """More of a thinking block."""

    thinking: str


class SignatureDelta(msgspec.Struct, kw_only=True, tag="signature_delta"):
    """The signature of a thinking block, which ends with it."""

    signature: str


class InputDelta(msgspec.Struct, kw_only=True, tag="input_json_delta"):
    """More of the JSON text of a call's input."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(msgspec.Struct, kw_only=True, tag="content_block_delta"):
    """More of a block."""

    index: Count
    delta: Delta


class BlockStop(msgspec.Struct, kw_only=True, tag="content_block_stop"):
    """The end of a block."""

    index: Count


class EndDelta(msgspec.Struct, kw_only=True):
    """Reason for which the reply ended."""

    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, kw_only=True, tag="message_delta"):
    """The end of the reply, with the usage of all of it."""

    delta: EndDelta
    usage: MessagesUsage


class MessageStop(msgspec.Struct, kw_only=True, tag="message_stop"):
    """The last event."""


class Ping(msgspec.Struct, kw_only=True, tag="ping"):
    """Keeps the connection alive while the reply has no output."""


BlockEvent = BlockStart | BlockDelta | BlockStop
StreamEvent = MessageStart | BlockEvent | MessageDelta | MessageStop | Ping | MessagesErrorResponse


class ContextManagement(msgspec.Struct, kw_only=True):
    """Counts before the conversation was shortened, which it never is."""

    original_input_tokens: Count


class TokenCount(msgspec.Struct, kw_only=True):
    """Number of tokens of a prompt."""

    input_tokens: Count
    context_management: ContextManagement
