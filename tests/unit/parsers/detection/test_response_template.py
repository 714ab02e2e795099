"""What a checkpoint says itself of its replies, in Hugging Face's format."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from quire.errors import ConfigError
from quire.parsers.detection.names import FormatChoice
from quire.parsers.detection.response_template import read_response_template
from quire.parsers.parser import parse_whole

from .conftest import Detect
from .templates import HERMES, chatml

THINKING = {"open": ["<pre>", "<muse>"], "close": "</muse>", "content": "text"}
NAMED = {
    "open_pattern": r"<fn\:(?P<name>[\w.]+)>\n",
    "close": "</fn>",
    "content": "json",
    "repeats": True,
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}
KEYED = {
    "open": "<use>",
    "close": "</use>",
    "content": "json",
    "transform": {
        "type": "function",
        "function": {"name": "{content.tool}", "arguments": "{content.input}"},
    },
}


def template_of(**fields: Any) -> dict[str, Any]:
    return {"version": 1, "start_anchor": "<|im_start|>assistant\n", "fields": fields}


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (NAMED, '<fn:f>\n{"a": 1}</fn>\n<fn:g>\n{}</fn>'),
        (KEYED, '<use>{"tool": "f", "input": {"a": 1}}</use><use>{"input": {}, "tool": "g"}</use>'),
    ],
)
def test_it_comes_before_all_that_is_found(
    detected: Detect, calls: dict[str, Any], text: str
) -> None:
    given = template_of(thinking=THINKING, content={}, tool_calls=calls)
    found = detected(None, response_template=given, model_type="qwen3")
    assert found.tools is not None
    assert found.reasoning is not None
    assert "response_template" in found.tools.how
    assert "response_template" in found.reasoning.how
    message = parse_whole(found.reply, f"<pre>why</muse>So. {text}", {"f": {}, "g": {}})
    assert (message.reasoning, message.content) == ("why", "So.")
    read = [(call.name, call.arguments, call.is_complete) for call in message.tool_calls]
    assert read == [("f", '{"a": 1}', True), ("g", "{}", True)]


def test_what_does_not_read_the_chat_templates_calls_is_passed_over(detected: Detect) -> None:
    found = detected(HERMES, response_template=template_of(tool_calls=KEYED))
    assert found.tools is not None
    assert found.tools.name == "hermes"
    own = (
        '<use>{"tool": "{{ call.function.name }}", '
        '"input": {{ call.function.arguments|tojson }}}</use>'
    )
    found = detected(chatml(own), response_template=template_of(tool_calls=KEYED))
    assert found.tools is not None
    assert "response_template" in found.tools.how


def test_marks_of_a_family_are_read_as_the_family_does(detected: Detect) -> None:
    thinking = {"open": "<think>", "close": "</think>"}
    found = detected(None, response_template=template_of(thinking=thinking))
    assert str(found.reasoning) == "qwen3 (as the checkpoint's response_template says)"


@pytest.mark.parametrize(
    "calls",
    [
        {**NAMED, "open_pattern": r"<fn:(?P<name>(a|a)*)>"},
        {**NAMED, "open_pattern": r"(?:<fn>)+(?P<name>\w+)"},
        {**NAMED, "open_pattern": r"\s*<fn:(?P<name>\w+)"},
        {**NAMED, "open_pattern": "<fn>" * 100 + r"(?P<name>\w+)"},
        {**NAMED, "open_pattern": 3},
        {**NAMED, "close_pattern": "(x+x+)+y"},
        {**NAMED, "content_args": {"unquoted_keys": True}},
        {**NAMED, "content": "xml-inline"},
        {**NAMED, "transform": None},
        {**KEYED, "open": ""},
        {**KEYED, "open": ["<a>", "<b>"]},
        {**KEYED, "transform": {"function": {"name": "{content.a.b}", "arguments": "{content}"}}},
        [],
        "x",
    ],
)
def test_what_is_unusual_is_told_and_left_out(calls: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="quire"):
        assert read_response_template(template_of(tool_calls=calls)).calls is None
    assert "response_template is not used: field tool_calls:" in caplog.text


def test_it_can_be_asked_for_by_name(detected: Detect) -> None:
    asked = FormatChoice.of("hf", "hf")
    given = template_of(thinking=THINKING, tool_calls=KEYED)
    found = detected(HERMES, asked, response_template=given)
    assert found.tools is not None
    assert found.reasoning is not None
    assert "response_template" in found.tools.how
    assert "response_template" in found.reasoning.how
    (call,) = parse_whole(
        found.reply, '<use>{"tool": "f", "input": {}}</use>', {"f": {}}
    ).tool_calls
    assert call.name == "f"


@pytest.mark.parametrize(
    ("asked", "given", "message"),
    [
        (("hf", None), None, "tool_call_parser='hf' requires a response_template.*tool_calls"),
        (("hf", None), template_of(thinking=THINKING), "tool_call_parser='hf'"),
        (("hf", None), template_of(tool_calls={**NAMED, "open_pattern": 3}), "a supported field"),
        ((None, "hf"), template_of(tool_calls=KEYED), "reasoning_parser='hf'.*thinking"),
    ],
)
def test_asked_for_it_has_to_be_there(
    detected: Detect, asked: tuple[str | None, str | None], given: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        detected(HERMES, FormatChoice.of(*asked), response_template=given)


@pytest.mark.parametrize("given", [None, 3, [], {}, {"version": 2, "fields": {}}, {"fields": 1}])
def test_what_is_no_template_says_nothing(given: object) -> None:
    declared = read_response_template(given)
    assert (declared.reasoning, declared.calls) == (None, None)
