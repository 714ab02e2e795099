"""Converts chat messages from the form that users send to the form that templates expect.

Content parts become text, or stay parts if the template loops over them; those of a tool's result
become text always, as in vLLM. Arguments of tool calls become objects. Reasoning is stored under
every name that templates use, or as a content part if the template reads such parts. Called by
`rendering`; raises RequestError that names the invalid message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.chat.job import MAX_NESTING, ContentFormat
from quire.errors import RequestError
from quire.images.modality import MODALITIES

_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Kinds of content parts that hold text, and the key of the text."""
_KNOWN_FIELDS = frozenset({"type", "uuid", "closed", *_TEXT_KEYS.values()})
"""Fields of text parts that templates do not get."""
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")
"""Names under which templates read the reasoning of past messages; clients use the first three."""


@dataclass(frozen=True, slots=True)
class Images:
    """Rules for images, videos and audio in a conversation."""

    placeholders: Mapping[str, str] = field(default_factory=dict)
    """Placeholders in a text, by these names; without one, the conversation may have none."""
    why_not: str = ""

    def placeholder_of(self, part: Any) -> str | None:
        """The placeholder of an image, a video or audio. None for other parts, or if the model does
        not take such a part."""
        kind = next((one for one in MODALITIES if part == {"type": one}), "")
        return self.placeholders.get(kind)

    @property
    def reason(self) -> str:
        """Why there may be none, for an error."""
        return f"; images cannot be used: {self.why_not}" if self.why_not else ""


NO_IMAGES = Images()


def template_messages(
    messages: Sequence[Any],
    content_format: ContentFormat,
    *,
    missing: Any = None,
    keeps_text: bool = False,
    has_text_arguments: bool = False,
    keeps_thinking: bool = False,
    images: Images = NO_IMAGES,
) -> list[dict[str, Any]]:
    """The messages, which are JSON, without keys whose value is None. Changes their contents.

    `missing`: the content of an assistant's message without content, for example with tool calls.
    `keeps_text`: text is not converted to a list of parts. `has_text_arguments`: arguments of calls
    are JSON texts, not objects. `keeps_thinking`: the template reads parts of the type `thinking`,
    so that reasoning becomes the first part of its message's content.
    """
    if not messages:
        raise _error("there must be at least one message", messages)
    keeps_thinking = keeps_thinking and content_format == "openai"
    converted = []
    for index, given in enumerate(messages):
        is_text = keeps_text and isinstance(given, dict) and isinstance(given.get("content"), str)
        form = "string" if is_text else content_format
        message = _message(index, given, form, images, keeps_thinking=keeps_thinking)
        if keeps_thinking:
            _add_thinking(message)
        if message["role"] == "assistant":
            message.setdefault("content", missing)
        for function in _functions(message.get("tool_calls", ())) if has_text_arguments else ():
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        converted.append(message)
    return converted


def check_nesting(value: Any, what: str) -> None:
    """Raises RequestError for lists and dicts nested more than `MAX_NESTING` levels."""
    level, depth = [value], 0
    while level:
        if depth > MAX_NESTING + 1:
            raise RequestError(f"{what} is nested more than {MAX_NESTING} deep", parameter=what)
        level, depth = [inner for item in level for inner in _inside(item)], depth + 1


def _inside(value: Any) -> Iterable[Any]:
    if type(value) is list:
        return value
    return value.values() if type(value) is dict else ()


def _message(
    index: int, given: Any, content_format: ContentFormat, images: Images, *, keeps_thinking: bool
) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise _error(f"messages[{index}] has no role", given)
    message = {key: value for key, value in given.items() if value is not None}
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if message["role"] == "tool" and all(images.placeholder_of(part) is None for part in parts):
        content_format = "string"  # most templates take the text of a tool's result as a string
    if isinstance(content, list):
        keeps_thinking = keeps_thinking and content_format == "openai"  # not in a tool's result
        parts = [
            dict(part) if keeps_thinking and _is_thinking(part) else _part(index, part, images)
            for part in content
            if not _is_empty(part)
        ]
        message["content"] = _joined(parts, content_format, images)
    elif isinstance(content, str):
        parts = [{"type": "text", "text": content}]
        message["content"] = _joined(parts, content_format, images)
    elif content is not None:
        raise _error(f"messages[{index}].content is neither a string nor a list", content)
    if message.get("tool_calls") == []:
        del message["tool_calls"]  # templates ask whether there are any by the key alone
    if "tool_calls" in message:
        _parse_arguments(index, message["tool_calls"])
    reasoning = max((message[key] for key in _REASONING if key in message), key=bool, default=None)
    if reasoning is not None:
        message |= {key: reasoning for key in _REASONING if not message.get(key)}
    return message


def _is_thinking(part: Any) -> bool:
    is_typed = isinstance(part, dict) and part.get("type") == "thinking"
    return is_typed and isinstance(part.get("thinking"), str)


def _add_thinking(message: dict[str, Any]) -> None:
    """Puts the reasoning of a message before its content, unless the content has some already."""
    reasoning, content = message.get("reasoning"), message.get("content")
    if not isinstance(reasoning, str) or not reasoning:
        return
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not any(map(_is_thinking, parts)):
        parts = parts if content else []
        message["content"] = [{"type": "thinking", "thinking": reasoning}, *parts]


def _joined(
    parts: list[dict[str, Any]], content_format: ContentFormat, images: Images
) -> str | list[dict[str, Any]]:
    """The parts, or one text: the placeholders of the images, then the texts."""
    if content_format == "openai":
        return parts
    places = [place for part in parts if (place := images.placeholder_of(part)) is not None]
    return "\n".join([*places, *(part["text"] for part in parts if part["type"] == "text")])


def _part(index: int, part: Any, images: Images) -> dict[str, Any]:
    if images.placeholder_of(part) is not None:
        return dict(part)
    return _text_part(index, part, images)


def _is_empty(part: Any) -> bool:
    """Whether the text is null: such a part is left out, as in vLLM."""
    kind = part.get("type", "text") if isinstance(part, dict) else None
    return kind in ("text", "refusal") and kind in part and part[kind] is None


def _text_part(index: int, part: Any, images: Images) -> dict[str, Any]:
    """The part as templates expect it; fields that OpenAI does not know come along."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type", "text" if "text" in part else None) if isinstance(part, dict) else None
    if kind not in _TEXT_KEYS:
        known = ", ".join(_TEXT_KEYS)
        raise _error(
            f"messages[{index}].content has a part of type {kind!r:.50}; "
            f"this model takes: {known}{images.reason}",
            part,
        )
    text = part.get(_TEXT_KEYS[kind])
    if not isinstance(text, str):
        raise _error(f"messages[{index}].content has a {kind} part without text", part)
    own = {name: value for name, value in part.items() if name not in _KNOWN_FIELDS}
    return {"type": "text", "text": text, **own}


def _parse_arguments(index: int, tool_calls: Any) -> None:
    """OpenAI sends a function's arguments as a JSON string; templates expect the object."""
    if not isinstance(tool_calls, list):
        raise _error(f"messages[{index}].tool_calls must be a list", tool_calls)
    for number, function in enumerate(_functions(tool_calls)):
        place = f"messages[{index}].tool_calls[{number}].function"
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _error(
                f'{place} must be an object with a name: {{"name": "f", "arguments": "{{}}"}}',
                function,
            )
        function["arguments"] = _parsed(place, function.get("arguments") or {})


def _parsed(place: str, arguments: Any) -> dict[str, Any]:
    """A text that is no JSON object becomes an empty one, as in vLLM: a model may have written
    anything, and an error would end the conversation for good, as the call stays in its history.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
        return arguments if isinstance(arguments, dict) else {}
    if isinstance(arguments, dict):
        return arguments
    raise _error(
        f'{place}.arguments must be a string with a JSON object, as "{{}}", or an object', arguments
    )


def _functions(tool_calls: Iterable[Any]) -> Iterable[Any]:
    """The functions of calls; a call without one is the function itself, as in Hugging Face's
    conversations."""
    for call in tool_calls:
        yield call.get("function", call) if isinstance(call, dict) else call


def _error(message: str, value: object) -> RequestError:
    return RequestError(message, parameter="messages", value=value)
