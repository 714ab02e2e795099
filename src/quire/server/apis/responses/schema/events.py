"""The events of a streamed response. Each has a number, from 0 on.

`response.created` and `response.in_progress` come first, then the items one after the other, each
from `response.output_item.added` to `response.output_item.done`. One of `response.completed`,
`response.incomplete` and `response.failed` is last.
"""

from __future__ import annotations

import msgspec

from quire.server.apis.responses.schema.items import OutputItem, OutputText, ReasoningText
from quire.server.apis.responses.schema.reply import Response
from quire.server.generation.reply_fields import PositionLogprobs


class StreamEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """Fields of all events."""

    sequence_number: int = 0


class ResponseCreated(StreamEvent, kw_only=True, tag="response.created"):
    response: Response


class ResponseQueued(StreamEvent, kw_only=True, tag="response.queued"):
    response: Response


class ResponseInProgress(StreamEvent, kw_only=True, tag="response.in_progress"):
    response: Response


class ResponseCompleted(StreamEvent, kw_only=True, tag="response.completed"):
    response: Response


class ResponseIncomplete(StreamEvent, kw_only=True, tag="response.incomplete"):
    response: Response


class ResponseFailed(StreamEvent, kw_only=True, tag="response.failed"):
    response: Response


class OutputItemAdded(StreamEvent, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class OutputItemDone(StreamEvent, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class ItemEvent(StreamEvent, kw_only=True, tag="item"):
    """Fields of all events within an item."""

    item_id: str
    output_index: int


class ContentPartAdded(ItemEvent, kw_only=True, tag="response.content_part.added"):
    content_index: int = 0
    part: OutputText | ReasoningText


class ContentPartDone(ItemEvent, kw_only=True, tag="response.content_part.done"):
    content_index: int = 0
    part: OutputText | ReasoningText


class OutputTextDelta(ItemEvent, kw_only=True, tag="response.output_text.delta"):
    content_index: int = 0
    delta: str
    logprobs: list[PositionLogprobs]


class OutputTextDone(ItemEvent, kw_only=True, tag="response.output_text.done"):
    content_index: int = 0
    text: str
    logprobs: list[PositionLogprobs]


class ReasoningTextDelta(ItemEvent, kw_only=True, tag="response.reasoning_text.delta"):
    content_index: int = 0
    delta: str


class ReasoningTextDone(ItemEvent, kw_only=True, tag="response.reasoning_text.done"):
    content_index: int = 0
    text: str


class ArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


AnyEvent = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
"""All events, for the OpenAPI document."""
