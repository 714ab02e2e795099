"""`/v1/responses`: the response, the events of a stream, and what the routes of stored ones
answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.apis.responses.items_schema import Item, OutputItem, OutputText, ReasoningText
from quire.server.apis.responses.schema import ShownCacheOptions, TextFormat
from quire.server.requests.fields import Count, PositionLogprobs, RequestMetrics

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Sources of the prompt's tokens."""

    cached_tokens: Count = 0
    """Found in the prefix cache."""
    cache_write_tokens: Count = 0


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """Purposes of the reply's tokens."""

    reasoning_tokens: Count = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Token counts of one response."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why a response ended early."""

    reason: Literal["max_output_tokens", "content_filter"]


class ReplyFunction(msgspec.Struct, kw_only=True, tag="function", tag_field="type"):
    """A function that was offered. All its fields are always there, as clients expect."""

    name: str | None
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ReplyCustomTool(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag="custom", tag_field="type"
):
    """A tool with a text that was offered."""

    name: str | None
    description: str | None = None
    format: dict[str, Any] | None = None


class ReplyNamespace(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag="namespace", tag_field="type"
):
    """A namespace of tools that was offered."""

    name: str | None
    description: str | None = None
    tools: list[ReplyFunction | ReplyCustomTool]


ReplyTool = ReplyFunction | ReplyCustomTool | ReplyNamespace


class ReplyText(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer's form."""

    format: TextFormat
    verbosity: str | None = None


class ReplyReasoning(msgspec.Struct, kw_only=True):
    """Settings of reasoning from the request."""

    effort: str | None = None
    summary: str | None = None


class Response(msgspec.Struct, kw_only=True):
    """A response: its status, its output, and the request's fields."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    completed_at: int | None = None
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: ShownCacheOptions | None = None
    prompt_cache_retention: str | None = None
    reasoning: ReplyReasoning
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: ReplyText
    tool_choice: str | dict[str, Any]
    tools: list[ReplyTool]
    top_logprobs: int = 0
    top_p: float
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str]
    metrics: RequestMetrics | msgspec.UnsetType = msgspec.UNSET


class InputTokens(msgspec.Struct, kw_only=True):
    """The size of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: Count


class ResponseDeleted(msgspec.Struct, kw_only=True):
    """A response that is no longer stored."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, kw_only=True):
    """Some items of a response's input."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseQuery(msgspec.Struct, kw_only=True):
    """Form in which a stored response is returned."""

    include: list[str] | None = None
    """Accepted: a response has what its request included."""
    include_obfuscation: bool | None = None
    """Accepted: no event is padded here."""
    stream: bool = False
    """Return it as events, from the first one or after `starting_after`."""
    starting_after: Annotated[int, Meta(ge=-1, le=2**53)] | None = None
    """The number of the last event that the caller has."""


class ItemsQuery(msgspec.Struct, kw_only=True):
    """Which items of a response's input are returned."""

    include: list[str] | None = None
    """Accepted: items have what their request included."""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    """The id of the last item that the caller has."""


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
