"""Calls written as in Python, and its literals."""

from __future__ import annotations

import json

import pytest
from tests.unit.parsers.tagged.calls import Call, read

from quire.parsers.arguments.python_literals import MAX_DEPTH, json_of_literal


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", "[f(s='a', i=1), g()]"),
        ("llama4_pythonic", "<|python_start|>[f(s='a', i=1), g()]<|python_end|>"),
        ("llama4_pythonic", "[f(s='a',i=1,),g()]"),
        ("olmo3", "<function_calls>\nf(s='a', i=1)\ng()\n</function_calls>"),
        ("lfm2", "<|tool_call_start|>[f(s='a', i=1), g()]<|tool_call_end|>"),
    ],
)
def test_families_differ_in_marks_alone(name: str, text: str) -> None:
    assert read(name, text) == ("", [("f", {"s": "a", "i": 1}), ("g", {})])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("[1, 2] is a list", "[1, 2] is a list", []),
        ("[click(here)](x)", "[click(here)](x)", []),
        ("[f(a == 1)]", "[f(a == 1)]", []),
        ("[f(", "[f(", []),
        ("so [f()]", "so [f()]", []),
        ("[f()] so", " so", [("f", {})]),
        ("[f(s='a", "", [("f", '{"s": "a')]),
        ("[f(i=1, 5)]", ")]", [("f", '{"i": 1')]),
        ("[a.b(s='x')]", "", [("a.b", {"s": "x"})]),
        ("[f(from=1, in=(2, 3), s={'x', 'y'})]", "", [
            ("f", {"from": 1, "in": [2, 3], "s": ["x", "y"]})]),
        ("[f(s='sed -n '1,9p' f.py')]", "", [("f", {"s": "sed -n '1,9p' f.py"})]),
        (r"""[f(s='python -c "print('hi', 'x, "y")"', i=1)]""", "", [
            ("f", {"s": """python -c "print('hi', 'x, "y")\"""", "i": 1})]),
        ("[f(l=['a', 'b's'], s='x')]", "", [("f", {"l": ["a", "b's"], "s": "x"})]),
        ("[f(s='a', 'b', i=1)]", "", [("f", {"s": "a', 'b", "i": 1})]),
        ("[f(s='''a'b''', i=-07)]", "", [("f", {"s": "a'b", "i": -7})]),
    ],
)  # fmt: skip
def test_calls_in_a_list(text: str, content: str, calls: list[Call]) -> None:
    assert read("pythonic", text) == (content, calls)


def test_lfm2_repeats_itself() -> None:
    text = "Hi <|tool_call_start|>[g()]<|tool_call_end|>[g()]<|tool_call_end|> done"
    assert read("lfm2", text) == ("Hi done", [("g", {})])
    text = "<|tool_call_start|>[g()]<|tool_call_end|> [1] done"
    assert read("lfm2", text) == ("[1] done", [("g", {})])
    assert read("lfm2", "a <|tool_call_start|>[ ]<|tool_call_end|>") == ("a ", [])


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("[1, -2, +3, 0x1F, 1_000, 1e3, .5, 5.]", [1, -2, 3, 31, 1000, 1000.0, 0.5, 5.0]),
        ("[True, False, None, true, null]", [True, False, None, True, None]),
        ("{'a': 1, 2: 'b', None: [],}", {"a": 1, "2": "b", "null": []}),
        (r"['\n\t\x41\u00e9\U0001f600\q\'']", ["\n\tAé😀\\q'"]),
        (r"['\ud83d\ude00', r'\n', b'x', f'y']", ["😀", "\\n", "x", "y"]),
        ("('a',)", ["a"]),
        ("[word, two words]", ["word", "two words"]),
        ("[nan, -inf, 1e999]", ["nan", "-inf", "1e999"]),
        ("{}", {}),
        ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
    ],
)
def test_literals(literal: str, expected: object) -> None:
    text = json_of_literal(literal)
    assert text is not None
    assert json.loads(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "[1",
        "{'a'}x",
        "{'a': 1, 'b'}",
        "['a]",
        "{'a': }",
        "[a b(1)]",
        "{1: 2 3: 4}",
        "[" * (MAX_DEPTH + 2),
    ],
)
def test_what_is_no_literal(text: str) -> None:
    assert json_of_literal(text) is None
