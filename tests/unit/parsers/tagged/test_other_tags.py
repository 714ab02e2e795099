"""MiniMax M3, Gemma, PLaMo: forms that no others share."""

from __future__ import annotations

import pytest
from tests.unit.parsers.tagged.calls import TOOLS, Call, read

from quire.parsers.events import ToolCall
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import parse_whole
from quire.parsers.tool_formats.minimax_m3 import MiniMaxM3Calls

M = "]<]minimax[>["
QUOTE = '<|"|>'


def m3(inner: str, name: str = "f") -> str:
    text = f'<tool_call>\n<invoke name="{name}">{inner}</invoke>\n</tool_call>'
    return text.replace("<", f"{M}<")


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("", {}),
        ("<s>4 2</s>\n<i>5</i>", {"s": "4 2", "i": 5}),
        ("<l><item>a</item><item>1</item></l>", {"l": ["a", "1"]}),
        ("<l></l><o></o><s></s>", {"l": [], "o": {}, "s": ""}),
        ("<o><a><item>1</item></a></o>", {"o": {"a": [1]}}),
        ("<r><k>3</k></r>", {"r": {"k": 3}}),
        ("<z>1</z><z>2</z><z>3</z>", {"z": ["1", "2", "3"]}),
        ("<z>text<y>1</y></z>", {"z": {"y": "1", "$text": "text"}}),
        ("<s>a</b></s>", {"s": "a</b>"}),
    ],
)
def test_elements_are_values(inner: str, expected: object) -> None:
    assert read("minimax_m3", m3(inner)) == ("", [("f", expected)])


def test_elements_too_deep_are_dropped() -> None:
    inner = "<a>" * 200 + "</a>" * 200
    assert parse_whole(
        ReplyFormat(None, MiniMaxM3Calls()), m3(f"<i>1</i>{inner}<s>a</s>"), TOOLS
    ).tool_calls == [ToolCall("f", None, '{"i": 1}', True)]


def test_calls_of_minimax_m3() -> None:
    assert read("minimax_m3", f"{M}<tool_call> no") == (f"{M}<tool_call> no", [])
    assert read("minimax_m3", m3("<s>a</s>")[:-30]) == ("", [("f", "")])
    two = m3("").replace(f"\n{M}</tool_call>", "") + m3("", "g").removeprefix(f"{M}<tool_call>")
    assert read("minimax_m3", f"So: {two}") == ("So:", [("f", {}), ("g", {})])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"call:f{{s:{QUOTE}a{{b,{QUOTE},i:5,l:[{QUOTE}x{QUOTE},y],o:{{a:[1,2]}}}}", "",
         [("f", {"s": "a{b,", "i": 5, "l": ["x", "y"], "o": {"a": [1, 2]}})]),
        (":g{z:true,y:word,x:1.5}", "", [("g", {"z": True, "y": "word", "x": 1.5})]),
        (f"call:f(n:null,{QUOTE}s{QUOTE}: word)", "", [("f", {"n": None, "s": "word"})]),
        ("call:g{}", "", [("g", {})]),
        (f"call:f{{s:{QUOTE}a", None, [("f", '{"s": "a')]),
        ("call:f{i:1", None, [("f", '{"i": ')]),
        ("call:f{o:{a:[", None, [("f", '{"o": {"a": [')]),
        ("", "", []),
        ("call:none", "<|tool_call>call:none<tool_call|>", []),
    ],
)  # fmt: skip
def test_calls_of_gemma(text: str, content: str | None, calls: list[Call]) -> None:
    text = f"<|tool_call>{text}" + ("" if content is None else "<tool_call|>")
    assert read("gemma4", text) == (content or "", calls)


def test_calls_of_functiongemma() -> None:
    text = "call:f{s:<escape>5<escape>,i:<escape>5<escape>,z:<escape>[5]<escape>,x:2}"
    expected = {"s": "5", "i": 5, "z": [5], "x": 2}
    text = f"<start_function_call>{text}<end_function_call>"
    assert read("functiongemma", f"{text} {text}") == ("", [("f", expected)] * 2)


def test_calls_of_plamo() -> None:
    def plamo(text: str) -> str:
        return text.replace("(", "<|plamo:").replace(")", ":plamo|>")

    call = "(begin_tool_request)(begin_tool_name)f(end_tool_name)(begin_tool_arguments)"
    call = plamo(call) + "<|plamo:constrain|>json<|plamo:msg|>"
    end = plamo("(end_tool_arguments)(end_tool_request)")
    section = plamo("(begin_tool_requests)") + call
    text = f'So: {section}{{"s": "{end}"}}{end}{call}{end}{plamo("(end_tool_requests)")} ok'
    assert read("plamo3", text) == ("So: ok", [("f", {"s": end}), ("f", {})])
    assert read("plamo3", f"{section}{{}}{end[:-3]}") == ("", [("f", {})])
    without = section.replace(plamo("(begin_tool_request)"), "")
    assert read("plamo3", f"{without}{{}}{end}") == ("", [("f", {})])
    assert read("plamo3", f'{section}{{"s": ') == ("", [("f", '{"s": ')])
    head = section.index(plamo("(begin_tool_arguments)"))
    for num in range(len(plamo("(begin_tool_requests)")), head, 3):  # cut before the arguments
        assert read("plamo3", f"So: {section[:num]}") == ("So: ", []), section[:num]
    assert read("plamo3", plamo("(begin_tool_requests) x")) == (
        plamo("(begin_tool_requests) x"),
        [],
    )
