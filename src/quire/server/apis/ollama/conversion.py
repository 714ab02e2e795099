"""Requests in Ollama's form as the chat requests that ask for the same.

Prompt, sampling, tools and structure are those of `/v1/chat/completions`, which checks the values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.apis.chat.schema import ChatMessage, ChatRequest, ContentPart
from quire.server.apis.chat.tools import Tool
from quire.server.apis.ollama.schema import (
    GenerateRequest,
    OllamaChatRequest,
    OllamaMessage,
    TextFields,
)
from quire.server.generation.request_fields import JsonSchemaFormat, ResponseFormat, SamplerFields

_SAME = SamplerFields.__struct_fields__
"""Options that have the names of a chat's fields."""
_RENAMED = {
    "repeat_penalty": "repetition_penalty", "stop": "stop", "reasoning_effort": "reasoning_effort",
}  # fmt: skip
"""The same under other names. Open WebUI sends `reasoning_effort` among the options."""
_WITHOUT_EFFECT = frozenset({
    "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap",
    "use_mlock", "low_vram", "f16_kv", "vocab_only", "logits_all", "embedding_only",
    "penalize_newline", "repeat_last_n", "draft_num_predict",
})  # fmt: skip
"""Options of how a model is loaded, which the server's own options decide."""
_NEUTRAL: dict[str, tuple[float, ...]] = {
    "typical_p": (1.0,), "tfs_z": (1.0,), "mirostat": (0,),
}  # fmt: skip
"""Ways to sample that are not here, with the values that switch them off."""
_ONLY_WITH = frozenset({"mirostat_tau", "mirostat_eta"})
"""Options of a way to sample that is off."""


def chat_request(asked: OllamaChatRequest) -> ChatRequest:
    """The chat request. Raises RequestError."""
    return ChatRequest(
        messages=_messages(asked.messages),
        tools=None if not asked.tools else [_tool(one, i) for i, one in enumerate(asked.tools)],
        **_common(asked),
    )


def generate_request(asked: GenerateRequest) -> ChatRequest:
    """A prompt as a chat of one message, after the system's. Raises RequestError."""
    names = ("template", "context", *(("system", "images") if asked.suffix else ()))
    for name in names:
        if getattr(asked, name):
            raise RequestError(
                f"{name} is not supported{' with suffix' if asked.suffix else ''}; leave it out, "
                "and use /api/chat for conversations",
                parameter=name,
            )
    messages = [ChatMessage(role="user", content=_content(asked.prompt, asked.images))]
    if asked.system:
        messages.insert(0, ChatMessage(role="system", content=asked.system))
    return ChatRequest(messages=messages, **_common(asked))


def fields_without_effect(asked: TextFields) -> list[str]:
    """The accepted fields and options that ask for something that this server does not do."""
    given = asked.options or {}
    return [f"options.{name}" for name in given if name in _WITHOUT_EFFECT]


def _common(asked: TextFields) -> dict[str, Any]:
    if asked.logprobs:
        raise RequestError(
            "logprobs must be false here; /v1/chat/completions returns log-probabilities",
            parameter="logprobs",
        )
    fields: dict[str, Any] = {"model": asked.model, "stream": asked.stream is not False}
    fields |= _sampling(asked.options or {})
    if asked.think is True:
        fields["chat_template_kwargs"] = {"enable_thinking": True}
    elif asked.think is not None:
        fields["reasoning_effort"] = asked.think or "none"
    if asked.format == "json":
        fields["response_format"] = ResponseFormat(type="json_object")
    elif asked.format:
        schema = JsonSchemaFormat(name="format", schema=asked.format)
        fields["response_format"] = ResponseFormat(type="json_schema", json_schema=schema)
    return fields


def _sampling(options: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in _WITHOUT_EFFECT or name in _ONLY_WITH:
            continue
        if name in _SAME or name in _RENAMED:
            fields[_RENAMED.get(name, name)] = value
        elif name == "num_predict":
            fields["max_tokens"] = _num_predict(value)
        elif name not in _NEUTRAL:
            raise RequestError(
                f"options has no {quoted(name)}; it may have "
                f"{', '.join(('num_predict', *_RENAMED, *_SAME))}",
                parameter="options",
            )
        elif value not in _NEUTRAL[name]:
            raise RequestError(
                f"options.{name} must be {_NEUTRAL[name][0]}: this way to sample is not supported",
                parameter=f"options.{name}",
                value=value,
            )
    try:
        checked = msgspec.convert({"messages": [{"role": "user"}], **fields}, ChatRequest)
    except msgspec.ValidationError as error:
        raise RequestError(f"options: {error}", parameter="options") from None
    return {name: getattr(checked, name) for name in fields}


def _num_predict(value: Any) -> int | None:
    """Most tokens of the reply; None: as many as fit, which negative numbers mean."""
    if type(value) is not int or value == 0:
        raise RequestError(
            f"options.num_predict must be a positive number of tokens, or -1, not {quoted(value)}",
            parameter="options.num_predict",
            value=value,
        )
    return value if value > 0 else None


def _tool(given: dict[str, Any], index: int) -> Tool:
    try:
        return msgspec.convert(given, Tool)
    except msgspec.ValidationError as error:
        raise RequestError(f"tools[{index}]: {error}", parameter="tools") from None


def _messages(given: Sequence[OllamaMessage]) -> list[ChatMessage]:
    """The messages; calls without ids get some, by which their results are found."""
    messages, open_ids = [], list[tuple[str, str]]()
    for place, one in enumerate(given):
        message = ChatMessage(role=one.role, content=_content(one.content, one.images))
        if one.thinking:
            message.reasoning = one.thinking
        if one.tool_calls:
            open_ids = [
                (call.id or f"call_{place}_{index}", call.function.name)
                for index, call in enumerate(one.tool_calls)
            ]
            message.tool_calls = [
                {"id": id_, "type": "function",
                 "function": {"name": name, "arguments": json.dumps(call.function.arguments)}}
                for (id_, name), call in zip(open_ids, one.tool_calls, strict=True)
            ]  # fmt: skip
        if one.role == "tool":
            message.name = one.tool_name
            message.tool_call_id = one.tool_call_id or _take_id(open_ids, one.tool_name)
        messages.append(message)
    return messages


def _content(text: str, images: Sequence[str] | None) -> str | list[str | ContentPart]:
    """A message's text, after its images, which are base64 of files."""
    if not images:
        return text
    parts: list[str | ContentPart] = [
        ContentPart(type="image_url", image_url={"url": f"data:image/png;base64,{one}"})
        for one in images
    ]
    return [*parts, ContentPart(type="text", text=text)]


def _take_id(open_ids: list[tuple[str, str]], tool_name: str | None) -> str | None:
    """The id of the first open call of this tool, or of the first one where none is named."""
    for index, (id_, name) in enumerate(open_ids):
        if tool_name in (None, name):
            del open_ids[index]
            return id_
    return None
