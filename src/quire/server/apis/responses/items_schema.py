"""Items: what a response is made from, and what it consists of.

`Item` takes any item that a caller sends, and holds items in the store. The others are the items of
a reply.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.server.requests.fields import PositionLogprobs

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemPart(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a message (`input_text`, `input_image`, `input_audio`, `output_text`, `refusal`),
    of reasoning (`reasoning_text`, `summary_text`), or of a tool's output."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    input_audio: dict[str, Any] | None = None
    """A sound: base64 of a file as `data`."""
    detail: str | None = None
    """Accepted; the model decides how an image is divided."""
    file_id: str | None = None
    """Refused: no files are stored."""
    annotations: list[dict[str, Any]] | None = None
    logprobs: list[Any] | None = None
    """Accepted with `annotations`, as replies have them; they change nothing."""


class Item(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An item of the input. The types `message` (the default, if there is a role), `reasoning`,
    `function_call`, `function_call_output`, `custom_tool_call`, `custom_tool_call_output`,
    `compaction` and `item_reference` work."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[ItemPart] | None = None
    """Content of a message, or text of reasoning."""
    status: ItemStatus | None = None
    summary: list[ItemPart] | None = None
    """Summary of reasoning, used if its text is missing."""
    encrypted_content: str | None = None
    """The summary of a compaction, which is not encrypted; refused for reasoning."""
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    """Arguments of a function call, as JSON text."""
    input: str | None = None
    """Input of a custom tool: any text."""
    output: str | list[ItemPart] | None = None
    """Result of a tool."""
    phase: str | None = None
    """Accepted; it has no effect."""


class OutputText(msgspec.Struct, kw_only=True, tag="output_text", tag_field="type"):
    """The text of a message of the reply."""

    text: str
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[PositionLogprobs] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag="reasoning_text", tag_field="type"):
    """Text of the model's reasoning."""

    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag="message", tag_field="type"):
    """A message of the model."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, kw_only=True, tag="reasoning", tag_field="type"):
    """Reasoning of the model: its full text instead of a summary."""

    id: str
    status: ItemStatus
    summary: list[Any] = msgspec.field(default_factory=list)
    content: list[ReasoningText]


class FunctionCall(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag="function_call", tag_field="type"
):
    """A call of a function. `arguments` is a JSON text, unless it was cut short."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    namespace: str | None = None


class CustomToolCall(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag="custom_tool_call", tag_field="type"
):
    """A call of a custom tool with a text."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus
    namespace: str | None = None


OutputItem = ReasoningItem | OutputMessage | FunctionCall | CustomToolCall
