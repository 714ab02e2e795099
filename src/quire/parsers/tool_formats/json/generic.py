"""Calls of a model that was not trained to call tools, and whose chat template shows it none.

A text of ours says in the prompt which tools there are and how to call them: by an object between
tags. What was said before is written in the same form. For templates that render the same with and
without tools alone: all others have words of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.parsers.tool_formats.json.hermes import HermesCalls

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
    """As the words ask for them: the tags are text, and no token need be there for them."""


def with_tools_in_words(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    has_system: bool = True,
) -> list[Message]:
    """The conversation with the tools in words, for a template that shows no tools.

    `tools`: as a request has them, each with a `function`. `has_system`: the template takes a
    message of the system; otherwise the words come before the first message of the user. Calls and
    results become text of the assistant and of the user. Changes none of its arguments.
    """
    told = _told(messages)
    words = _WORDS.format("\n".join(_described(tool) for tool in tools))
    roles = ("system", "developer") if has_system else ("user",)
    place = next((i for i, one in enumerate(told) if one.get("role") in roles), None)
    if place is None:
        told.insert(0, {"role": roles[0], "content": words})
    elif has_system:
        told[place] = {**told[place], "content": _joined(told[place].get("content"), words)}
    else:
        told[place] = {**told[place], "content": _joined(words, told[place].get("content"))}
    return told


def _told(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """With calls and results as text. What the user says right after results is one message with
    them, because many templates want the roles to alternate."""
    told: list[Message] = []
    follows_result = False
    for message in messages:
        role, content = message.get("role"), message.get("content")
        is_result = role == "tool"
        if is_result:
            content = _RESULT.format(_text(content))
        if follows_result and role in ("tool", "user"):
            told[-1]["content"] = _joined(told[-1]["content"], content)
        elif is_result:
            told.append({"role": "user", "content": content})
        else:
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            if calls := message.get("tool_calls"):
                kept["content"] = _joined(content, "\n".join(map(_call, calls)))
            told.append(kept)
        follows_result = is_result or (follows_result and role == "user")
    return told


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
    """Two contents in a row; parts stay parts."""
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return "\n".join(text for text in (first, second) if text)


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content or ""
