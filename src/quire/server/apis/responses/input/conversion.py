"""From a request of `/v1/responses` to the chat that asks for the same. Unsupported fields are
refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.responses.input.messages import chat_messages, is_unfinished
from quire.server.apis.responses.schema.items import Item
from quire.server.apis.responses.schema.request import (
    PromptCacheOptions,
    ResponsesRequest,
    TextFormat,
)
from quire.server.apis.responses.tools import Offered, chat_tool_fields
from quire.server.generation.request_fields import JsonSchemaFormat, ResponseFormat, SamplerFields

LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_INCLUDES = (LOGPROBS, _ENCRYPTED)
_HOSTED_INCLUDES = (
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "web_search_call.results",
    "web_search_call.action.sources",
)  # fmt: skip
"""Accepted without effect: they belong to tools and inputs that this server does not have."""
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "conversation": ((None,), "continue a response with previous_response_id"),
    "prompt": ((None,), "prompts cannot be stored: send the text as instructions and input"),
    "context_management": ((None, []), "shorten a conversation with /v1/responses/compact"),
    "previous_input_messages": ((None, []), "send them as items of the input"),
    "enable_response_messages": ((None, False), "/v1/responses/{id}/input_items has the input"),
    "kv_transfer_params": ((None, {}), "prompts and replies are computed in one place"),
    "ec_transfer_params": ((None, {}), "prompts and replies are computed in one place"),
    "media_io_kwargs": ((None, {}), "Pillow decodes all images in the same way"),
}
"""Unsupported fields with their neutral values, and the alternative."""
WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "service_tier": (None, "auto", "default"),
    "session_id": (None,),
    "prompt_cache_options": (None, PromptCacheOptions()),
}
_MOST_METADATA, _MOST_KEY, _MOST_VALUE = 16, 64, 512
"""Entries of `metadata`, and characters of each; OpenAI's."""


def check_fields(request: ResponsesRequest) -> None:
    """Raises RequestError for the first field with an unsupported value."""
    for name, (neutral, instead) in REFUSED.items():
        value: Any = getattr(request, name)
        if value not in neutral:
            raise RequestError(
                f"{name} does not work here, got {quoted(value):.100}; {instead}.", parameter=name
            )
    for name in request.include or ():
        if name not in _INCLUDES + _HOSTED_INCLUDES:
            raise RequestError(
                f"include: {quoted(name)} is not known; what works is {', '.join(_INCLUDES)}",
                parameter="include",
            )
    if request.truncation not in (None, "auto", "disabled"):
        raise RequestError(
            f"truncation is auto or disabled, got {quoted(request.truncation)}",
            parameter="truncation",
        )
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.", parameter="stream_options"
        )
    _check_metadata(request.metadata or {})


def fields_without_effect(request: ResponsesRequest) -> list[str]:
    """The accepted fields whose values ask for something that is not done."""
    names = [
        name for name, neutral in WITHOUT_EFFECT.items() if getattr(request, name) not in neutral
    ]
    include = request.include or []
    if request.top_logprobs and LOGPROBS not in include:
        names.append("top_logprobs")
    if _ENCRYPTED in include:
        names.append("include")
    if request.reasoning is not None and (
        request.reasoning.summary or request.reasoning.generate_summary
    ):
        names.append("reasoning.summary")
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        names.append("text.verbosity")
    return names


def _check_metadata(metadata: dict[str, str]) -> None:
    longest_key = max(map(len, metadata), default=0)
    longest_value = max(map(len, metadata.values()), default=0)
    too_much = (
        len(metadata) > _MOST_METADATA or longest_key > _MOST_KEY or longest_value > _MOST_VALUE
    )
    if too_much:
        raise RequestError(
            f"metadata has at most {_MOST_METADATA} entries, with keys of at most {_MOST_KEY} and "
            f"values of at most {_MOST_VALUE} characters",
            parameter="metadata",
        )


_SAME_NAME = (
    *(field.name for field in msgspec.structs.fields(SamplerFields)),
    "model", "include_reasoning", "stop", "stop_token_ids", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "watermarking", "structured_outputs", "chat_template_kwargs", "mm_processor_kwargs",
    "request_id", "priority", "cache_salt", "vllm_xargs",
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
