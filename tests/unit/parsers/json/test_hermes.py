"""Hermes: calls between tags, content around them, reasoning before them."""

from __future__ import annotations

import pytest
from replies import message_of, parsed

from quire.parsers.events import Message, ToolCall
from quire.parsers.format import ReplyFormat
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.tool_formats.bare_json import LlamaCalls
from quire.parsers.tool_formats.hermes import HermesCalls

FORMAT = ReplyFormat(ReasoningTags("<think>", "</think>"), HermesCalls())
TOOLS = {"f": {}, "g": {}}


def call(name: str, arguments: str, *, is_complete: bool = True) -> ToolCall:
    return ToolCall(name, None, arguments, is_complete)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hello <b>", Message("Hello <b>")),
        (
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
            Message(tool_calls=[call("f", '{"a": 1}')]),
        ),
        (
            'So:\n<tool_call>{"arguments": {}, "name": "f"}</tool_call>\n'
            '<tool_call>{"name": "g"}</tool_call> done',
            Message("So: done", tool_calls=[call("f", "{}"), call("g", "{}")]),
        ),
        (
            '<think>\nhm</think>\n\n<tool_call>{"name": "f", "arguments": {"t": "}</tool_call>"}}',
            Message(reasoning="\nhm", tool_calls=[call("f", '{"t": "}</tool_call>"}')]),
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": [1, "x',
            Message(tool_calls=[call("f", '{"a": [1, "x', is_complete=False)]),
        ),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\ud83d\\\\ude00\\"}"}',
            Message(tool_calls=[call("f", '{"a": "\\ud83d\\ude00"}')]),
        ),
        ("<tool_call> no call", Message("<tool_call> no call")),
        ('<tool_call>{"name": 3}</tool_call>', Message('<tool_call>{"name": 3}</tool_call>')),
        ('<tool_call>{"nam', Message('<tool_call>{"nam')),
        ("a <tool_cal", Message("a <tool_cal")),
        ("  <thinking", Message("  <thinking")),
        ("<think>never closed", Message(reasoning="never closed")),
    ],
)
def test_message(text: str, message: Message) -> None:
    assert message_of(FORMAT, text, TOOLS) == message


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('So: <tool_call>\n{"name": "f', "So:"),
        ("So: <tool_ca", "So:"),
        ("a <", "a <"),
        ("a <table", "a <table"),
        ("<tool_call> no call", "<tool_call> no call"),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>'),
        ("a </thi", "a </thi"),
    ],
)
def test_what_a_cut_reply_ends_with(text: str, content: str) -> None:
    for pieces in ([text], list(text)):
        assert Message.of(parsed(FORMAT, pieces, TOOLS, is_cut=True)) == Message(content)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"name": "f", "par', ""),
        ('{"na', ""),
        ('{"city": "Paris", "temp', '{"city": "Paris", "temp'),
        ('{"name": "Anna", "age": 3', '{"name": "Anna", "age": 3'),
    ],
)
def test_json_that_was_cut_is_an_answer_unless_it_begins_as_a_call(text: str, content: str) -> None:
    format = ReplyFormat(None, LlamaCalls())
    for pieces in ([text], list(text)):
        assert Message.of(parsed(format, pieces, TOOLS, is_cut=True)) == Message(content)


def test_without_tools_calls_are_text() -> None:
    text = '<tool_call>{"name": "f"}</tool_call>'
    assert message_of(FORMAT, text) == Message(text)


def test_a_prompt_may_end_within_the_reasoning() -> None:
    expected = Message("yes", "hm")
    assert message_of(FORMAT, "hm</think>yes", is_reasoning=True) == expected
    assert message_of(FORMAT, "<think>hm</think>yes", is_reasoning=True) == expected
