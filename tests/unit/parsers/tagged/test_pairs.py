"""Calls in tags whose arguments are pairs."""

from __future__ import annotations

import pytest
from tests.unit.parsers.tagged.calls import Call, read


def pair(key: str, value: str, mark: str = "", suffix: str = "") -> str:
    key = f"<{mark}arg_key{suffix}>{key}</{mark}arg_key{suffix}>"
    return f"{key}<{mark}arg_value{suffix}>{value}</{mark}arg_value{suffix}>"


BOTH = pair("s", " a\n") + pair("i", "1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("glm45", f"<tool_call>f\n{BOTH}\n</tool_call>"),
        ("glm47", f"<tool_call>f{BOTH}</tool_call>"),
        ("ling3", f"<tool_call> f {BOTH} </tool_call>"),
        ("poolside_v1", f"<tool_call>f\n{BOTH}\n</tool_call>"),
        ("hy_v3", f"<tool_calls>\n<tool_call>f<tool_sep>\n{BOTH}\n</tool_call>\n</tool_calls>"),
        (
            "hy_v4",
            f"<tool_calls:6e><tool_call:6e>f{pair('s', ' a' + chr(10), suffix=':6e')}"
            f"{pair('i', '1', suffix=':6e')}</tool_call:6e></tool_calls:6e>",
        ),
        (
            "k2_horizon",
            f"<ifm|tool_calls><ifm|tool_call>f{pair('s', ' a' + chr(10), 'ifm|')}"
            f"{pair('i', '1', 'ifm|')}</ifm|tool_call></ifm|tool_calls>",
        ),
    ],
)
def test_families_differ_in_tags_alone(name: str, text: str) -> None:
    expected = ("So:", [("f", {"s": " a\n", "i": 1})])
    assert read(name, f"So:\n{text}\n") == expected


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<tool_call>g</tool_call> <tool_call>g\n</tool_call>", "", [("g", {}), ("g", {})]),
        ("a <tool_call></tool_call>b", "a b", []),
        ("<tool_call>g", "<tool_call>g", []),
        ("<tool_call> no call </tool_call>", "<tool_call> no call </tool_call>", []),
        ('<tool_call>{"name": "g"}</tool_call>', "", [("g", {})]),
        ("<tool_call>f<arg_key>s</arg_key>\n<arg_value>a", "", [("f", '{"s": "a')]),
        (
            "<tool_call>f<arg_key>s</arg_key><arg_value>a<arg_key>i</arg_key>"
            "<arg_value>1</tool_call>",
            "",
            [("f", {"s": "a", "i": 1})],
        ),
        ("<tool_call>f<arg_key>s<arg_value>a</arg_value></tool_call>", "", [("f", {"s": "a"})]),
        ("<tool_call>f<arg_key>s</arg_key></tool_call>", "", [("f", {})]),
        (f"<tool_call>f{pair('z', '1')}</tool_call>", "", [("f", {"z": "1"})]),
        (
            f"<tool_call>f{pair('l', '[1, chr(34)]')}</tool_call>",
            "",
            [("f", {"l": "[1, chr(34)]"})],
        ),
    ],
)
def test_calls_of_glm(text: str, content: str, calls: list[Call]) -> None:
    assert read("glm47", text) == (content, calls)


def test_a_tag_may_say_the_type() -> None:
    typed = "<ifm|arg_key>z</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type><ifm|arg_value>1"
    text = f"<ifm|tool_calls><ifm|tool_call>h{typed}</ifm|arg_value></ifm|tool_call>"
    assert read("k2_horizon", text) == ("", [("h", {"z": 1})])


def test_a_suffix_that_changes_ends_nothing() -> None:
    text = f"<tool_calls:a><tool_call:a>f{pair('s', 'x</arg_value:b>', suffix=':a')}"
    text += "</tool_call:a></tool_calls:a>"
    assert read("hy_v4", text) == ("", [("f", {"s": "x</arg_value:b>"})])
