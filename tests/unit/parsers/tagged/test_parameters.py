"""Calls in tags that name the tool and each argument."""

from __future__ import annotations

import pytest
from tests.unit.parsers.tagged.calls import Call, read

from quire.parsers.parser import parse_whole
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format


def qwen(*parameters: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("s", "plain", "plain"),
        ("s", "12", "12"),
        ("s", "\n two\n\n", "\n two\n\n"),
        ("s", 'a "b" \\ <c> </parameters>', 'a "b" \\ <c> </parameters>'),
        ("s", "", ""),
        ("s", "</tool_call> is text", "</tool_call> is text"),
        ("i", "5", 5),
        ("i", "+07", 7),
        ("i", "many", "many"),
        ("x", "1e2", 100.0),
        ("x", ".5", 0.5),
        ("x", "1e999", "1e999"),
        ("b", "True", True),
        ("b", "0", False),
        ("n", "null", None),
        ("n", "nullable", "nullable"),
        ("n", "nul", "nul"),
        ("l", '["a", "</parameter>"]', ["a", "</parameter>"]),
        ("l", "['a', None]", ["a", None]),
        ("l", "[" * 90, "[" * 90),
        ("o", '{"a": [1]}', {"a": [1]}),
        ("o", '{"a": ', '{"a": '),
        ("r", '{"k": 1}', {"k": 1}),
        ("unknown", "5", "5"),
    ],
)
def test_values_are_what_the_schema_says(key: str, value: str, expected: object) -> None:
    assert read("qwen3_coder", qwen((key, value))) == ("", [("f", {key: expected})])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<tool_call>\n<function=g>\n</function>\n</tool_call>", "", [("g", {})]),
        ("Hi\n<function=g></function> bye", "Hi bye", [("g", {})]),
        (
            "<tool_call><function=f><parameter=s>a<parameter=i>1</function></tool_call>",
            "",
            [("f", {"s": "a", "i": 1})],
        ),
        (
            "<tool_call><function=f><parameter=s>a</parameter></tool_call>"
            "<tool_call><function=g></function></tool_call>",
            "",
            [("f", {"s": "a"}), ("g", {})],
        ),
        ("<tool_call><function=f><function=g></function>", "", [("f", {}), ("g", {})]),
        ("<tool_call><function=f><parameter=s>a b", "", [("f", '{"s": "a b')]),
        ("<tool_call><function=f><parameter=i>1", "", [("f", '{"i": ')]),
        ("<tool_call><function=f><parameter=s>a</parameter>", "", [("f", '{"s": "a"')]),
        ("<tool_call><function=f><parameter=", "", [("f", "")]),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [("f", {})]),
        ("a <tool_call>\n</tool_call>b", "a b", []),
        ("<tool_call> no call", "<tool_call> no call", []),
        ("a <function=no call> b", "a <function=no call> b", []),
        ("<functions", "<functions", []),
        ("<tool_call>\n<function=f", "<tool_call>\n<function=f", []),
        (
            '<function=f><parameter=arguments>{"s": "1", "i": 2}</parameter></function>',
            "",
            [("f", {"s": "1", "i": 2})],
        ),
        (
            "<function=f><parameter=input>text</parameter></function>",
            "",
            [("f", {"input": "text"})],
        ),
    ],
)
def test_calls_of_qwen(text: str, content: str, calls: list[Call]) -> None:
    assert read("qwen3_coder", text) == (content, calls)


DSML = "｜DSML｜"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seed_oss", "<seed:tool_call><function=f><parameter=s>a</parameter><parameter=i>1"
         "</parameter></function></seed:tool_call>"),
        ("mimo", "<tool_call>\n<function=f>\n<parameter=s>a</parameter>\n<parameter=i>1</parameter>"
         "\n</function>\n</tool_call>"),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">a</parameter>\n'
         "<parameter name='i'>1</parameter>\n</invoke>\n</minimax:tool_call>"),
        ("dots", '<dots_function_call><invoke name=f><parameter name="s"> a </parameter>'
         "<parameter name=i>1</parameter></invoke></dots_function_call>"),
        ("deepseek_v32", f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name='
         f'"s" string="true">a</{DSML}parameter>\n<{DSML}parameter name="i" string="false">1'
         f"</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>"),
        ("deepseek_v4", f'<{DSML}toolcalls><{DSML}invoke name="f"><{DSML}parameter name="s" string='
         f'"true">a<{DSML}parameter name="i">1</{DSML}invoke></{DSML}tool_calls>'),
        ("deepseek_v41", f'<{DSML} calls>\n<{DSML} invoke name="f">\n<{DSML} parameter name="s" '
         f'string="true">a</{DSML} parameter>\n<{DSML} parameter name="i" string="false">1'
         f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"),
        ("step3", '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>'
         '<steptml:invoke name="f"><steptml:parameter name="s">a </steptml:parameter>'
         '<steptml:parameter name="i">1'
         "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>"),
        ("minicpm5", '<function name="f"><param name="s"><![CDATA[a]]></param><paramname="i"> 1 '
         "</param></function>"),
        ("muse_glimmer", ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f.f">\n'
         '<atem:parameter name="s">a</atem:parameter>\n<atem:parameter name="i">1</atem:parameter>'
         "\n</atem:invoke>\n</atem:function_calls><|eot|>"),
    ],
)  # fmt: skip
def test_families_differ_in_tags_alone(name: str, text: str) -> None:
    assert read(name, text) == ("", [("f", {"s": "a", "i": 1})])


def test_a_tag_of_deepseek_says_what_the_schema_does_not() -> None:
    text = f"""<{DSML}invoke name="h"><{DSML}parameter name="a" string="true">1</{DSML}parameter>
<{DSML}parameter name="b" string="false">1</{DSML}parameter></{DSML}invoke>"""
    assert read("deepseek_v4", text) == ("", [("h", {"a": "1", "b": 1})])


def test_a_call_that_reasoning_only_mentions_is_none() -> None:
    """Of calls with marks around them, none begins in the reasoning without those marks."""
    call = (
        '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">a</｜DSML｜parameter>'
    )
    call += "\n</｜DSML｜invoke>\n"
    format = reply_format(REASONING_FORMATS["deepseek_v4"], TOOL_FORMATS["deepseek_v4"]())
    thought = 'Not <｜DSML｜invoke name="g">. '
    marked = f"<｜DSML｜tool_calls>\n{call}</｜DSML｜tool_calls>"
    for text in (f"{thought}</think>\n{marked}", thought + marked):
        message = parse_whole(format, text, {}, is_reasoning=True)
        assert message.reasoning.strip() == thought.strip()
        assert [(one.name, one.arguments) for one in message.tool_calls] == [("f", '{"s": "a"}')]
