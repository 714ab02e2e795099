"""Tools in words: what a template that shows none is given, and what is read from the reply."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from quire.parsers.format import ReplyFormat
from quire.parsers.parser import parse_whole
from quire.parsers.tool_formats.in_words import GenericCalls, with_tools_in_words

FUNCTION = {"name": "f", "description": "Does é.", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": {**FUNCTION, "strict": True}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Do."},
    {"role": "assistant", "content": "Yes.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
    {"role": "tool", "content": [{"type": "text", "text": "4"}], "tool_call_id": "2"},
    {"role": "user", "content": "And?"},
]


def test_the_words_come_first() -> None:
    [system, user] = with_tools_in_words(HISTORY[:1], [TOOL])
    assert system["role"] == "system"
    described = json.dumps(FUNCTION, ensure_ascii=False)
    assert f"<tools>\n{described}\n</tools>" in system["content"]
    assert user == HISTORY[0]


@pytest.mark.parametrize("content", ["Be kind.", [{"type": "text", "text": "Be kind."}]])
def test_they_follow_what_the_system_says(content: Any) -> None:
    [system, _] = with_tools_in_words(
        [{"role": "system", "content": content}, *HISTORY[:1]], [TOOL]
    )
    parts = system["content"]
    text = parts if isinstance(parts, str) else "\n".join(part["text"] for part in parts)
    assert text.startswith("Be kind.\nYou can call tools.")
    assert type(parts) is type(content)


def test_a_template_without_a_system_has_them_before_the_user() -> None:
    [user] = with_tools_in_words(HISTORY[:1], [TOOL], has_system=False)
    assert user["role"] == "user"
    assert user["content"].startswith("You can call tools.")
    assert user["content"].endswith("\nDo.")


def test_calls_and_results_are_text() -> None:
    before = copy.deepcopy(HISTORY)
    told = with_tools_in_words(HISTORY, [TOOL])[1:]
    assert before == HISTORY
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert told[1] == {"role": "assistant", "content": f"Yes.\n{call}\n{call}"}
    result = "<tool_response>\n{}\n</tool_response>"
    assert told[2:] == [
        {"role": "user", "content": f"{result.format(3)}\n{result.format(4)}\nAnd?"}
    ]


def test_a_result_keeps_its_images() -> None:
    image = {"type": "image"}
    history = [*HISTORY[:2], {"role": "tool", "content": [image, {"type": "text", "text": "3"}]}]
    told = with_tools_in_words(history, [TOOL])
    text = "<tool_response>\n3\n</tool_response>"
    assert told[-1] == {"role": "user", "content": [{"type": "text", "text": text}, image]}


def test_what_was_written_is_what_is_read() -> None:
    told = with_tools_in_words(HISTORY, [TOOL])
    message = parse_whole(ReplyFormat(None, GenericCalls()), told[2]["content"], {"f": {}})
    assert message.content == "Yes."
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        ("f", {"a": 1})
    ] * 2


@pytest.mark.parametrize("arguments", [{"a": 1}, None, ""])
def test_arguments_may_be_objects(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    [_, told] = with_tools_in_words([{"role": "assistant", "tool_calls": [call]}], [TOOL])
    assert json.dumps(arguments or {}) in told["content"]
