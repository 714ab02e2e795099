"""Harmony: messages on channels, calls among them."""

from __future__ import annotations

import pytest
from tests.fakes.replies import message_of

from quire.parsers.events import Message, ToolCall
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format

FORMAT = reply_format(REASONING_FORMATS["openai_gptoss"], TOOL_FORMATS["openai"]())
TOOLS = {"f": {}}
NEXT = "<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def call(arguments: str, name: str = "f", *, is_complete: bool = True) -> ToolCall:
    return ToolCall(name, None, arguments, is_complete)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{ANALYSIS}hm{NEXT}{FINAL}yes<|return|>", Message("yes", "hm")),
        (f"{FINAL}yes", Message("yes")),
        (f"{ANALYSIS}never ended", Message("", "never ended")),
        (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c", Message("c", "a\nb")),
        (
            f"<|channel|>commentary<|message|>First.{NEXT}{CALL}{{}}<|call|>",
            Message("First.", tool_calls=[call("{}")]),
        ),
        (f'{CALL} {{"a": "<|call|>"}}', Message(tool_calls=[call('{"a": "<|call|>"}')])),
        (f'{CALL}{{"a": ', Message(tool_calls=[call('{"a": ', is_complete=False)])),
        (f"{CALL}<|call|>", Message(tool_calls=[call("{}")])),
        (f"{CALL}not json<|call|>", Message(tool_calls=[call("not json")])),
        (
            "to=functions.f<|channel|>commentary json<|message|>[1]<|call|>",
            Message(tool_calls=[call("[1]")]),
        ),
        (
            "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
            Message(tool_calls=[call("{}", "browser.search")]),
        ),
        (
            f"{ANALYSIS}a<|start|>assistant{CALL}{{}}<|call|><|start|>assistant{CALL}{{}}",
            Message("", "a", [call("{}"), call("{}")]),
        ),
        ("no header at all", Message("no header at all")),
        ("  no header, to=me", Message("  no header, to=me")),
        (f"plain{FINAL}more", Message("plain\nmore")),
        ("<|channel|>fin", Message("")),
        (f"<|start|>assistant{FINAL}x<|end|>\n", Message("x\n")),
    ],
)
def test_message(text: str, message: Message) -> None:
    assert message_of(FORMAT, text, TOOLS) == message


def test_a_prompt_may_end_within_the_reasoning() -> None:
    text = f"hm{NEXT}{FINAL}yes"
    expected = Message("yes", "hm")
    assert message_of(FORMAT, text, TOOLS, is_reasoning=True) == expected
    assert message_of(FORMAT, ANALYSIS + text, TOOLS, is_reasoning=True) == expected


def test_without_tools_a_call_is_content() -> None:
    assert message_of(FORMAT, f"{CALL}{{}}<|call|>") == Message("{}")


def test_without_a_reasoning_format_the_analysis_is_content() -> None:
    format = reply_format(None, TOOL_FORMATS["openai"]())
    assert message_of(format, f"{ANALYSIS}hm{NEXT}{FINAL}yes", TOOLS) == Message("hm\nyes")
