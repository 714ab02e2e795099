"""`chat_request`: a request in Anthropic's form as the chat request that asks for the same.

Prompt, sampling, tools and structure are those of `/v1/chat/completions`, which checks the values.
`named_as_asked` puts its errors into the caller's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quire.errors import RequestError
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.messages.conversation import chat_messages
from quire.server.apis.messages.schema import (
    MessagesRequest,
    OutputFormat,
    PromptFields,
    Thinking,
    chat_tool_fields,
    names_left_out,
)
from quire.server.generation.request_fields import JsonSchemaFormat, ResponseFormat

_SAME_NAME = (
    "stream", "temperature", "top_p", "top_k", "metadata", "cache_salt", "watermarking",
    "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "mm_payload", "return_mm_kwargs",
)  # fmt: skip
"""Fields that a chat request has too."""
_OWN_NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""Fields of a chat request by what stands for them here."""
_TOO_LONG = {"input_tokens", "input_text"}
_LEAST_BUDGET = 1024


def chat_prompt_fields(
    request: PromptFields, *, merges_system: bool, disabled_effort: str = "none"
) -> dict[str, Any]:
    """The fields of a chat request that make its prompt. Raises RequestError.

    `merges_system`: see `chat_messages`. `disabled_effort`: the reasoning effort for thinking that
    is disabled.
    """
    if request.mcp_servers:
        raise RequestError(
            "mcp_servers: this server calls no others; leave it out, and let the client run the "
            "tools",
            parameter="mcp_servers",
        )
    if request.thread is not None:
        raise RequestError(
            "thread: this server keeps no conversations; leave it out, and send all messages, the "
            "tools and the system prompt with each request",
            parameter="thread",
        )
    messages = chat_messages(request.system, request.messages, merges_system=merges_system)
    fields: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        **chat_tool_fields(request),
        "chat_template_kwargs": request.chat_template_kwargs,
        **_reasoning(request, disabled_effort),
    }
    if messages and messages[-1].role == "assistant":
        fields |= _going_on(request, messages[-1].tool_calls)
    return fields


def fields_without_effect(request: MessagesRequest, *, holds_budget: bool) -> list[str]:
    """The accepted fields that ask for something that this server does not do. `holds_budget`:
    the tokens of reasoning can be limited."""
    names, thinking = names_left_out(request.tools), request.thinking
    if thinking is None:
        return names
    given = {
        "thinking.budget_tokens": thinking.type == "enabled" and not holds_budget,
        "thinking.display": thinking.display not in (None, "summarized"),
    }
    return [*names, *(name for name, is_given in given.items() if is_given)]


def chat_request(
    request: MessagesRequest, max_model_len: int, *, holds_budget: bool, **template: Any
) -> ChatRequest:
    """The chat request. Raises RequestError. `holds_budget` as above; `template`: the options of
    `chat_prompt_fields`."""
    if request.container is not None:
        raise RequestError(
            "container: this server runs no code; leave it out", parameter="container"
        )
    budget = _budget(request.thinking, request.max_tokens)
    fields = chat_prompt_fields(request, **template)
    fields |= {name: getattr(request, name) for name in _SAME_NAME}
    return ChatRequest(
        **fields,
        stop=request.stop_sequences,
        thinking_token_budget=budget if holds_budget else None,
        max_tokens=min(request.max_tokens, max_model_len),  # the reply says where that ended it
        response_format=_response_format(request),
    )


@contextmanager
def named_as_asked() -> Iterator[None]:
    """Errors of the chat request name the fields of this form."""
    try:
        yield
    except RequestError as error:
        name, message = error.parameter, str(error)
        if name is None:
            raise
        if name in _TOO_LONG:  # clients look for these words, and then shorten the conversation
            message = f"prompt is too long: {message}"
        own = own_name(name)
        message = re.sub(rf"\b{re.escape(name)}(?!\w)", own, message) if own != name else message
        raise RequestError(message, parameter=own, value=error.value) from None


def own_name(name: str) -> str:
    """This API's name of a field of a chat request."""
    if name.startswith("tools["):
        return name.replace(".function.parameters", ".input_schema").replace(".function.", ".")
    return _OWN_NAMES.get(name, name)


def _going_on(request: PromptFields, tool_calls: Any) -> dict[str, Any]:
    """A conversation that ends with the assistant's words: the reply goes on with them."""
    if tool_calls:
        raise RequestError(
            f"messages[{len(request.messages) - 1}]: the conversation ends with calls of tools; "
            "send their results as blocks of type tool_result in a turn of the user",
            parameter="messages",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _reasoning(request: PromptFields, disabled_effort: str) -> dict[str, Any]:
    """Fields for the chat template that say how much the model reasons."""
    effort = request.output_config.effort if request.output_config is not None else None
    fields: dict[str, Any] = {"reasoning_effort": effort}
    if request.thinking is None:
        return fields
    if request.thinking.type == "disabled":
        return {"reasoning_effort": disabled_effort}
    if request.thinking.type == "enabled" and effort is None:
        own = request.chat_template_kwargs or {}
        return {"chat_template_kwargs": {"enable_thinking": True, **own}}
    return fields


def _budget(thinking: Thinking | None, max_tokens: int) -> int | None:
    """Most tokens of the reasoning; None: as many as the reply may have."""
    if thinking is None or thinking.type != "enabled":
        return None
    budget = thinking.budget_tokens
    if budget is None or not _LEAST_BUDGET <= budget < max_tokens:
        raise RequestError(
            f"thinking.budget_tokens must be at least {_LEAST_BUDGET} and less than max_tokens, "
            f"which is {max_tokens}; got {budget}",
            parameter="thinking.budget_tokens",
            value=budget,
        )
    return budget


def _response_format(request: MessagesRequest) -> ResponseFormat | None:
    wanted: OutputFormat | None = request.output_format
    if request.output_config is not None and request.output_config.format is not None:
        wanted = request.output_config.format
    if wanted is None:
        return None
    if wanted.schema is None:
        raise RequestError(
            "output_config.format.schema: a format of type json_schema needs a schema",
            parameter="output_config.format.schema",
        )
    schema = JsonSchemaFormat(name="output", schema=wanted.schema)
    return ResponseFormat(type="json_schema", json_schema=schema)
