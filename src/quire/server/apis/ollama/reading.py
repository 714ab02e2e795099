"""Reads requests in Ollama's form into requests for text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.config.model_lookup.settings import NEUTRAL, ONLY_WITH, WITHOUT_EFFECT
from quire.errors import RequestError, quoted
from quire.server.apis.ollama.schema import (
    GenerateRequest,
    OllamaChatRequest,
    OllamaMessage,
    TextFields,
)
from quire.server.args import ReasoningEffort
from quire.server.conversation.conversation import Conversation, ToolChoice, tool_use
from quire.server.conversation.message import ChatMessage, ContentPart, Tool
from quire.server.requests.fields import SamplerFields
from quire.server.requests.reading import given, read_logprobs
from quire.server.requests.request import AnyRequest, ReplyOptions, TextRequest
from quire.server.requests.texts import Gap, TextPrompts

_SAME = SamplerFields.__struct_fields__
"""Options that have the names of a chat's fields."""
_RENAMED = {"repeat_penalty": "repetition_penalty", "stop": "stop",
            "reasoning_effort": "reasoning_effort"}  # fmt: skip
"""The same under other names. Open WebUI sends `reasoning_effort` among the options."""
_ALL_NAMES = {**_RENAMED, "num_predict": "max_tokens"}
_WITHOUT_EFFECT = WITHOUT_EFFECT | {"num_ctx"}
"""Options of how a model is loaded, which the server's own options decide."""
DEFAULTS = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1, "repeat_last_n": 64,
}  # fmt: skip
"""Ollama's own, of its `DefaultOptions`."""


class _Options(SamplerFields, kw_only=True):
    """Types of the options that are read as they are."""

    stop: str | list[str] | None = None
    repetition_penalty: float | None = msgspec.field(default=None, name="repeat_penalty")
    reasoning_effort: ReasoningEffort | None = None


def read_chat(body: OllamaChatRequest) -> TextRequest[Conversation]:
    """Raises RequestError."""
    tools = [_tool(one, i) for i, one in enumerate(body.tools or ())] or None
    return _read(body, _messages(body.messages), tools)


def read_generate(body: GenerateRequest) -> AnyRequest:
    """A prompt as a conversation of one message, after the system's; or a text, with a gap or
    without the template. Raises RequestError."""
    _check_prompt(body)
    messages = [ChatMessage(role="user", content=_content(body.prompt, body.images))]
    if body.system:
        messages.insert(0, ChatMessage(role="system", content=body.system))
    asked: AnyRequest = _read(body, messages)
    asked.prompt.earlier_token_ids = body.context or []
    if body.raw:
        asked.prompt = TextPrompts(body.prompt)
        asked.ignored += ["suffix"] if body.suffix else []
    elif body.suffix:
        asked.prompt = Gap(body.prompt, body.suffix)
        asked.ignored += ["system"] if body.system else []
    return asked


def _check_prompt(body: GenerateRequest) -> None:
    """Raises RequestError for fields that exclude each other, and for a template."""
    if body.template:
        raise RequestError(
            "template must be empty: this server runs no Go templates; send the finished prompt "
            "with raw=true",
            parameter="template",
        )
    excluded = {"raw": ("system", "context", "images"), "suffix": ("images", "context")}
    for name, others in excluded.items():
        for other in others:
            if getattr(body, name) and getattr(body, other):
                raise RequestError(f"{other} must be empty with {name}", parameter=other)
    if body.context and body.images:
        raise RequestError("images must be empty with context", parameter="images")


def _read(
    body: TextFields, messages: list[ChatMessage], tools: list[Tool] | None = None
) -> TextRequest[Conversation]:
    options = body.options or {}
    sampling, max_tokens = _sampling(options)
    effort, variables = sampling.pop("reasoning_effort", None), None
    if body.think is True:
        variables = {"enable_thinking": True}
    elif body.think is not None:
        effort = body.think or "none"
    use = tool_use(tools, ToolChoice())
    chat = Conversation(
        messages=messages, tools=tools, tool_use=use, variables=variables, effort=effort
    )
    asked = TextRequest.of(
        body,
        chat,
        sampling=sampling,
        defaults=DEFAULTS,
        default_max_tokens=max_tokens,  # as in Ollama, it may be more than the context
        reply=ReplyOptions(stream=body.stream is not False),
        names={_ALL_NAMES.get(name, name): f"options.{name}" for name in options},
        ignored=[f"options.{name}" for name in options if name in _WITHOUT_EFFECT],
    )
    if body.logprobs:
        read_logprobs(asked, body.top_logprobs or 0)
    if body.format:
        is_any = body.format == "json"
        asked.constraint = {"json_object": True} if is_any else {"json": body.format}
        asked.name_constraint("format")
    elif tools:
        asked.name_constraint("tools")
    return asked


def _sampling(options: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The options as `SamplingParams` has them, and the most tokens of the reply."""
    fields: dict[str, Any] = {}
    max_tokens = None
    for name, value in options.items():
        if value is None or name in _WITHOUT_EFFECT or name in ONLY_WITH:
            continue
        if name in _SAME or name in _RENAMED:
            fields[name] = value
        elif name == "num_predict":
            max_tokens = _num_predict(value)
        elif name not in NEUTRAL:
            raise RequestError(
                f"options has no {quoted(name)}; it may have "
                f"{', '.join(('num_predict', *_RENAMED, *_SAME))}",
                parameter="options",
            )
        elif value not in NEUTRAL[name]:
            raise RequestError(
                f"options.{name} must be {NEUTRAL[name][0]}: this way to sample is not supported",
                parameter=f"options.{name}",
                value=value,
            )
    try:
        found = msgspec.convert(fields, _Options)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", "`$.options.")
        raise RequestError(f"Invalid request body: {text}", parameter="options") from None
    return given(found, [_RENAMED.get(name, name) for name in fields]), max_tokens


def _num_predict(value: Any) -> int | None:
    """Most tokens of the reply; None: as many as fit, which negative numbers mean."""
    if type(value) is not int or value == 0:
        raise RequestError(
            f"options.num_predict must be a positive number of tokens, or -1, not {quoted(value)}",
            parameter="options.num_predict",
            value=value,
        )
    return value if value > 0 else None


def _tool(body: dict[str, Any], index: int) -> Tool:
    try:
        return msgspec.convert(body, Tool)
    except msgspec.ValidationError as error:
        raise RequestError(f"tools[{index}]: {error}", parameter="tools") from None


def _messages(turns: Sequence[OllamaMessage]) -> list[ChatMessage]:
    """The messages; calls without ids get some, by which their results are found."""
    messages, open_ids = [], list[tuple[str, str]]()
    for place, one in enumerate(turns):
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
