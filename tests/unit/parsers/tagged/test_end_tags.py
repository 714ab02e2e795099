"""A string may contain the texts that end values: they count where something may follow them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.parsers.tagged.calls import read
from tests.unit.structured.texts import checked_grammar, follows

from quire.parsers.registry import TOOL_FORMATS

TOOLS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {"s": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["s"],
    }
}
DSML = "｜DSML｜"
QWEN = "<tool_call>\n<function=f>\n<parameter=s>\n{}\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>f<arg_key>s</arg_key><arg_value>{}</arg_value></tool_call>"
HUNYUAN = (
    "<tool_calls><tool_call>f<arg_key>s</arg_key><arg_value>{}</arg_value></tool_call></tool_calls>"
)
SEED = "<seed:tool_call>\n<function=f>\n<parameter=s>{}</parameter>\n</function>\n</seed:tool_call>"
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">{}</parameter>\n'
    "</invoke>\n</minimax:tool_call>"
)
DEEPSEEK = (
    f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="s" string="true">'
    f"{{}}</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>"
)
K3 = (
    '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="s" '
    'type="string"<|sep|>{}<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
)
MARK = "]<]minimax[>["
M3 = (
    f'{MARK}<tool_call>\n{MARK}<invoke name="f">\n{MARK}<s>{{}}{MARK}</s>\n{MARK}</invoke>\n'
    f"{MARK}</tool_call>"
)
CASES = [
    ("qwen3_coder", QWEN, "</parameter>", True),
    ("qwen3_coder", QWEN, "</function>", True),
    ("seed_oss", SEED, "</parameter>", True),
    ("seed_oss", SEED, "\n", True),
    ("glm47", GLM, "</arg_value>", True),
    ("hy_v4", HUNYUAN, "</arg_value>", True),
    ("hy_v4", HUNYUAN, "</tool_call>", True),
    ("minimax_m2", MINIMAX, "</parameter>", True),
    ("minimax_m2", MINIMAX, "</invoke>", True),
    ("deepseek_v32", DEEPSEEK, f"</{DSML}parameter>", True),
    ("kimi_k3", K3, "<|close|>argument<|sep|>", True),
    ("gemma4", '<|tool_call>call:f{{s:<|"|>{}<|"|>}}<tool_call|>', '<|"|>', False),
    ("functiongemma", "<start_function_call>call:f{{s:<escape>{}<escape>}}<end_function_call>",
     "<escape>", False),
    ("minimax_m3", M3, f"{MARK}</s>", False),
    ("minicpm5", '<function name="f"><param name="s">{}</param></function>', "</param>", True),
    ("minicpm5", '<function name="f"><param name="s"><![CDATA[{}]]></param></function>', "]]>",
     True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "end", "is_held"), CASES)
def test_a_string_contains_what_ends_it(name: str, call: str, end: str, is_held: bool) -> None:
    part = TOOL_FORMATS[name]().grammar(TOOLS, is_parallel=False)
    grammar = checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))
    texts = [f"say {end} to end", f"{end}x", f"{end} {end}\nx", f"a{end[:-1]}", f"{end}{end}."]
    for text in texts if name != "minimax_m3" else [*texts[:3], *texts[4:]]:
        written = call.format(text)
        assert read(name, written, TOOLS) == ("", [("f", {"s": text})]), written
        assert follows(grammar, written) or not is_held, written


@pytest.mark.parametrize("gap", ["", "\n", " \n\t"])
def test_an_end_counts_before_the_next_argument_and_the_end_of_the_call(gap: str) -> None:
    begin = "<tool_call>\n<function=f>\n<parameter=s>\na\n"
    more = f"</parameter>{gap}<parameter=n>\n5\n</parameter>{gap}</function>{gap}</tool_call>"
    assert read("qwen3_coder", begin + more, TOOLS) == ("", [("f", {"s": "a", "n": 5})])
    for end in (f"</parameter>{gap}</function>", f"</parameter>{gap}</tool_call>", "</function>"):
        assert read("qwen3_coder", begin + end, TOOLS) == ("", [("f", {"s": "a"})]), end
    part = TOOL_FORMATS["qwen3_coder"]().grammar(TOOLS, is_parallel=True)
    grammar = checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))
    for inner in (f"x</parameter>{gap}<parameter=s>y", f"x</parameter>{gap}</function>"):
        assert not follows(grammar, QWEN.format(inner))


def test_an_element_of_minimax_may_have_text_and_elements() -> None:
    inner = f"hi {MARK}<k>v{MARK}</k> there {MARK}<k>w{MARK}</k>"
    meant = {"k": ["v", "w"], "$text": "hi  there "}
    assert read("minimax_m3", M3.format(inner), {"f": {}}) == ("", [("f", {"s": meant})])
    junk = f"1{MARK}</s>junk{MARK}<n>5"
    written = M3.format(junk).replace(f"5{MARK}</s>", f"5{MARK}</n>")
    assert read("minimax_m3", written, TOOLS) == ("", [("f", {"s": "1", "n": 5})])


BEGINS = [
    ("qwen3_coder", QWEN, "<parameter={}>"),
    ("glm47", GLM, "<arg_key>{}</arg_key>"),
    ("hy_v4", HUNYUAN, "<arg_key>{}</arg_key>"),
    ("minimax_m2", MINIMAX, '<parameter name="{}">'),
    ("deepseek_v32", DEEPSEEK, f'<{DSML}parameter name="{{}}" string="true">'),
    ("minicpm5", CASES[-2][1], '<param name="{}">'),
]


@pytest.mark.parametrize(("name", "call", "begin"), BEGINS)
def test_a_string_contains_begin_tags_of_arguments_that_the_tool_has_not(
    name: str, call: str, begin: str
) -> None:
    part = TOOL_FORMATS[name]().grammar(TOOLS, is_parallel=False)
    grammar = checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))
    text = f"a {begin.format('x')} b {begin.format('')}"
    assert read(name, call.format(text), TOOLS) == ("", [("f", {"s": text})])
    assert follows(grammar, call.format(text))
    assert not follows(grammar, call.format(f"a {begin.format('n')} b"))
    (_, arguments), *_ = read(name, call.format(f"a{begin.format('n')}5"), TOOLS)[1]
    assert arguments["s"] == "a"
