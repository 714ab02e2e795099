"""From a request of `/v1/responses` to a chat, and errors of the chat in the caller's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.responses.input.checks import LOGPROBS
from quire.server.apis.responses.input.messages import chat_messages, is_unfinished
from quire.server.apis.responses.schema.items import Item
from quire.server.apis.responses.schema.request import ResponsesRequest, TextFormat
from quire.server.apis.responses.tools import Offered, chat_tool_fields
from quire.server.generation.request_fields import JsonSchemaFormat, ResponseFormat, SamplerFields

_SAME_NAME = (
    *(field.name for field in msgspec.structs.fields(SamplerFields)),
    "model", "include_reasoning", "stop", "stop_token_ids", "ignore_eos",
    "skip_special_tokens", "include_stop_str_in_output", "watermarking", "structured_outputs",
    "chat_template_kwargs", "mm_processor_kwargs", "request_id", "priority", "cache_salt",
    "vllm_xargs",
)  # fmt: skip
"""Fields with the same meaning in a chat."""
_NAMES = {
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "truncate_prompt_tokens": "truncation",
}
"""Fields of the chat that have another name here."""
_MESSAGES = "messages"
"""The chat's field that is made of the input; errors name the input instead."""


def chat_request(
    request: ResponsesRequest, history: Sequence[Item], items: Sequence[Item], offered: Offered
) -> ChatRequest:
    """The chat that asks for the same. `history`: the items before the input's `items`.

    Raises RequestError.
    """
    messages = chat_messages(request.instructions, [*history, *items])
    has_logprobs = LOGPROBS in (request.include or ())
    goes_on = bool(items) and is_unfinished(items[-1])
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAME_NAME}
    return ChatRequest(
        messages=messages,
        **chat_tool_fields(offered, request),
        response_format=_response_format(request),
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
        max_completion_tokens=request.max_output_tokens,
        logprobs=has_logprobs,
        stream=request.stream is True or has_logprobs,  # each step says which text it belongs to
        top_logprobs=request.top_logprobs if has_logprobs else None,
        truncate_prompt_tokens=-1 if request.truncation == "auto" else None,
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
        **fields,
    )


@contextmanager
def named_as_asked() -> Iterator[None]:
    """Errors that name a field of the chat name the field that a response has in its place."""
    try:
        yield
    except RequestError as error:
        name = error.parameter or ""
        if name.split("[")[0] == _MESSAGES:
            raise RequestError(str(error), parameter="input", value=error.value) from None
        for chats, ours in _NAMES.items():
            if name == chats or name.startswith((f"{chats}.", f"{chats}[")):
                message = str(error).replace(chats, ours)
                asked = ours + name.removeprefix(chats)
                raise RequestError(message, parameter=asked, value=error.value) from None
        raise


def _response_format(request: ResponsesRequest) -> ResponseFormat | None:
    wanted = None if request.text is None else request.text.format
    if wanted is None or wanted.type == "text":
        return None
    if request.structured_outputs is not None:
        raise RequestError(
            "Cannot specify both structured_outputs and text.format", parameter="structured_outputs"
        )
    if wanted.type == "json_object":
        return ResponseFormat(type="json_object")
    if wanted.type == "json_schema":
        return _schema_format(wanted)
    raise RequestError(
        f"text.format.type is text, json_object or json_schema, got {quoted(wanted.type)}",
        parameter="text.format.type",
    )


def _schema_format(wanted: TextFormat) -> ResponseFormat:
    if wanted.schema is None:
        raise RequestError("text.format of type json_schema needs a `schema`",
                           parameter="text.format.schema")  # fmt: skip
    return ResponseFormat(
        type="json_schema",
        json_schema=JsonSchemaFormat(
            name=wanted.name or "response",
            description=wanted.description,
            schema=wanted.schema,
            strict=wanted.strict,
        ),
    )
