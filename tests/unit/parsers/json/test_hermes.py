"""Hermes: calls between tags, content around them, reasoning before them."""

from __future__ import annotations

import pytest
from replies import message_of

from quire.parsers.events import Message, ToolCall
from quire.parsers.format import ReplyFormat
from quire.parsers.reasoning.tags import ReasoningTags
from quire.parsers.tool_formats.json.hermes import HermesCalls

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


def test_without_tools_calls_are_text() -> None:
    text = '<tool_call>{"name": "f"}</tool_call>'
    assert message_of(FORMAT, text) == Message(text)


def test_a_prompt_may_end_within_the_reasoning() -> None:
    expected = Message("yes", "hm")
    assert message_of(FORMAT, "hm</think>yes", is_reasoning=True) == expected
    assert message_of(FORMAT, "<think>hm</think>yes", is_reasoning=True) == expected
