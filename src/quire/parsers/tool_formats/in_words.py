"""Calls of a model that was not trained to call tools and whose chat template shows no tools.

A text in the prompt lists the tools and asks for calls as JSON objects between tags. Earlier calls
and results are written in the same form. Used only for templates that render the same with and
without tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.parsers.tool_formats.hermes import HermesCalls

Message = dict[str, Any]
_RESULT = "<tool_response>\n{}\n</tool_response>"
_WORDS = """You can call tools. Each line between <tools> and </tools> describes one of them, with \
the JSON schema of its arguments:
<tools>
{}
</tools>
To call a tool, write its name and its arguments as a JSON object between tags, like this:
<tool_call>
{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}
</tool_call>
Write nothing after the last call: the results follow between <tool_response> and \
</tool_response>. Answer in plain words where no tool is needed."""


class GenericCalls(HermesCalls):
    """Calls in the form that the prompt text asks for. Tags are plain text, not special tokens."""


def with_tools_in_words(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    has_system: bool = True,
) -> list[Message]:
    """The conversation with the tools described as text, for a template that shows no tools.

    `tools`: as in a request, each with a `function`. `has_system`: the template accepts a system
    message; otherwise the text comes before the first user message. Calls become assistant text,
    and results become user text. The arguments are not modified.
    """
    rendered = _with_calls_as_text(messages)
    words = _WORDS.format("\n".join(_described(tool) for tool in tools))
    roles = ("system", "developer") if has_system else ("user",)
    place = next((i for i, one in enumerate(rendered) if one.get("role") in roles), None)
    if place is None:
        rendered.insert(0, {"role": roles[0], "content": words})
    elif has_system:
        rendered[place] = {
            **rendered[place],
            "content": _joined(rendered[place].get("content"), words),
        }
    else:
        rendered[place] = {
            **rendered[place],
            "content": _joined(words, rendered[place].get("content")),
        }
    return rendered


def _with_calls_as_text(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages with calls and results as text. User text right after results is merged into their
    message, because many templates require alternating roles."""
    rendered: list[Message] = []
    follows_result = False
    for message in messages:
        role, content = message.get("role"), message.get("content")
        is_result = role == "tool"
        if is_result:
            others = [part for part in _parts(content) if not _is_text(part)]
            content = _joined(_RESULT.format(_text(content)), others or None)
        if follows_result and role in ("tool", "user"):
            rendered[-1]["content"] = _joined(rendered[-1]["content"], content)
        elif is_result:
            rendered.append({"role": "user", "content": content})
        else:
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            if calls := message.get("tool_calls"):
                kept["content"] = _joined(content, "\n".join(map(_call, calls)))
            rendered.append(kept)
        follows_result = is_result or (follows_result and role == "user")
    return rendered


def _described(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    names = ("name", "description", "parameters")
    known = {name: function[name] for name in names if function.get(name) is not None}
    return json.dumps(known, ensure_ascii=False)


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments or "{}"}}}\n</tool_call>'


def _joined(first: Any, second: Any) -> Any:
    """Concatenate two contents; lists of parts stay lists."""
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return "\n".join(text for text in (first, second) if text)


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _is_text(part: Any) -> bool:
    return not isinstance(part, Mapping) or isinstance(part.get("text"), str)


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content or ""
