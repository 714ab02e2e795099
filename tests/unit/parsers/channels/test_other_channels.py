"""Kimi K3, Inkling, Muse Glimmer: blocks and messages with marks, calls among them."""

from __future__ import annotations

import pytest
from tests.fakes.replies import message_of

from quire.parsers.events import Message, ToolCall
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format

TOOLS = {"f": {"properties": {"s": {"type": "string"}, "i": {"type": "integer"}}}, "g": {}}


def read(name: str, text: str, *, is_reasoning: bool = False) -> Message:
    format = reply_format(REASONING_FORMATS[name], TOOL_FORMATS[name]())
    return message_of(format, text, TOOLS, is_reasoning=is_reasoning)


def call(name: str, arguments: str, *, is_complete: bool = True) -> ToolCall:
    return ToolCall(name, None, arguments, is_complete)


F = call("f", '{"s": "a \\"b\\"", "i": 1}')


def kimi(text: str) -> str:
    """With `[x]` for the begin of `x` and `[/x]` for its end."""
    return text.replace("[/", "<|close|>").replace("[", "<|open|>").replace("]", "<|sep|>")


K3_CALL = (
    '[call tool="f" index="1"][argument key="s" type="string"]a "b"[/argument]'
    '[argument key="i" type="number"]1[/argument][/call]'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[think]hm[/think][response]yes[/response][/message]", Message("yes", "hm")),
        ("yes[/response]", Message("yes")),
        (
            f'Hi[/response][tools]{K3_CALL}[call tool="g" index="2"][/call][/tools][/message]',
            Message("Hi", tool_calls=[F, call("g", "{}")]),
        ),
        (
            '[tools][call tool="a&quot;&amp;" index="1"][argument key="x" type="object"]{"a": 1}'
            '[/argument][argument key="y" type="string"]1[/argument][/call]',
            Message(tool_calls=[call('a"&', '{"x": {"a": 1}, "y": "1"}')]),
        ),
        (
            '[tools][call tool="f" index="1"][argument key="s" type="string"]cut',
            Message(tool_calls=[call("f", '{"s": "cut', is_complete=False)]),
        ),
        ("[tools] nothing", Message(kimi("[tools] nothing"))),
    ],
)
def test_kimi_k3(text: str, message: Message) -> None:
    assert read("kimi_k3", kimi(text)) == message


def test_kimi_k3_within_reasoning() -> None:
    text = kimi("hm[/think][response]yes[/response]")
    assert read("kimi_k3", text, is_reasoning=True) == Message("yes", "hm")


END, HEADER = "<|end_message|>", "<|message_model|>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"<|content_text|>yes{END}", Message("yes")),
        (
            f"<|content_thinking|>hm{END}{HEADER}<|content_text|>yes{END}"
            f'{HEADER}f<|content_invoke_tool_json|>{{"name":"g","args":{{"a":1}}}}{END}'
            "<|content_model_end_sampling|>",
            Message("yes", "hm", [call("g", '{"a":1}')]),
        ),
        ("no mark < at all", Message("no mark < at all")),
        (
            "<|content_invoke_tool_json|>{no call}",
            Message("<|content_invoke_tool_json|>{no call}"),
        ),
        (
            '<|content_invoke_tool_json|>{"name":"g","args":{"a',
            Message(tool_calls=[call("g", '{"a', is_complete=False)]),
        ),
        ("<|content_thinking|>cut", Message(reasoning="cut")),
    ],
)
def test_inkling(text: str, message: Message) -> None:
    assert read("inkling", text) == message


ATEM = (
    '<atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="s">a "b"'
    '</atem:parameter>\n<atem:parameter name="i">1</atem:parameter>\n</atem:invoke>\n'
    "</atem:function_calls>"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" to=user<|message|>yes<|eot|>", Message("yes")),
        (
            f" to=self<|message|>{ATEM}<|eom|><|start|>assistant to=f<|message|>{ATEM}<|eom|>"
            f"<|start|>assistant to=f<|message|>{ATEM}<|eot|>",
            Message("", ATEM, [F, F]),
        ),
        (f" to=user<|message|>{ATEM}<|eot|>", Message(ATEM)),
        (f" to=self<|message|>hm<|start|>assistant to=f<|message|>{ATEM}", Message("", "hm", [F])),
        ("<|message|>bare<|eot|>", Message("bare")),
        (f"no header {ATEM}", Message("no header", tool_calls=[F])),
        (" to=us", Message("")),
    ],
)
def test_muse_glimmer(text: str, message: Message) -> None:
    assert read("muse_glimmer", text) == message


@pytest.mark.parametrize("name", ["muse", "musespark1x"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" to=user<|message|>yes<|eot|>", Message("yes")),
        ("<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes<|eot|>",
         Message("yes", "hm")),
        (f" to=commentary<|message|>I look.<|eom|><|start|>assistant to=f<|message|>{ATEM}<|eot|>",
         Message("I look.", tool_calls=[F])),
        (" to=developer<|message|>{hidden}<|eom|><|start|>assistant to=user<|message|>yes",
         Message("yes")),
        (f" to=developer<|message|>{ATEM}<|eom|>", Message("")),
        (f" to=commentary<|message|>{ATEM}<|eot|>", Message(ATEM)),
        (f" to=self<|message|>{ATEM}<|eom|><|start|>assistant to=f<|message|>{ATEM}<|eom|>",
         Message("", ATEM, [F])),
        (f"no header {ATEM}", Message("no header", tool_calls=[F])),
    ],
)  # fmt: skip
def test_muse(name: str, text: str, message: Message) -> None:
    assert read(name, text) == message


def test_muse_glimmer_within_reasoning() -> None:
    text = "hm<|eom|><|start|>assistant to=user<|message|>yes"
    assert read("muse_glimmer", text, is_reasoning=True) == Message("yes", "hm")
