"""The format of replies is found by what chat templates write."""

from __future__ import annotations

import json

import pytest

from quire.parsers.detection.names import FormatChoice
from quire.parsers.parser import parse_whole

from .conftest import Detect
from .templates import HERMES, chatml

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_a_known_format_is_recognised(detected: Detect) -> None:
    found = detected(HERMES)
    assert found.tools is not None
    assert found.tools.name == "hermes"
    assert found.reasoning is not None
    assert "past reasoning" in found.reasoning.how
    assert found.shows_tools
    message = parse_whole(found.reply, f"<think>\nwhy\n</think>\n{CALL}", {"f": {}})
    assert (message.reasoning.strip(), message.content) == ("why", "")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", '{"a": 1}')]


def test_what_was_asked_for_comes_first(detected: Detect) -> None:
    found = detected(HERMES, FormatChoice("none", "none"))
    assert (found.tools, found.reasoning) == (None, None)
    assert parse_whole(found.reply, CALL, {"f": {}}).content == CALL
    found = detected("{{ messages }}", FormatChoice("hermes", "qwen3"))
    assert str(found.tools) == "hermes (as requested)"
    assert str(found.reasoning) == "qwen3 (as requested)"


def test_the_kind_of_model_where_no_template_tells(detected: Detect) -> None:
    found = detected(None, model_type="qwen3")
    assert str(found.tools) == "hermes (by the kind of model)"
    assert str(found.reasoning) == "qwen3 (by the kind of model)"
    found = detected(None, model_type="gpt2")
    assert (found.tools, found.reasoning) == (None, None)


def test_a_template_without_tools_has_no_calls(detected: Detect) -> None:
    found = detected("{% for m in messages %}{{ m.content }}\n{% endfor %}", model_type="qwen2")
    assert found.tools is None
    assert not found.shows_tools


IN_WORDS = """{% if tools %}<|im_start|>system
WORDS
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content if m.content is string else "" }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OBJECT = '{"name": <function-name>, "arguments": <args-json-object>}'
PARAMETERS = "\n<function=example>\n<parameter=a>\n1\n</parameter>\n</function>\n"


@pytest.mark.parametrize(
    ("words", "model_type", "expected"),
    [
        (f"Return <tool_call>{OBJECT}</tool_call>.", "smollm3", "hermes (the prompt with"),
        (f"Return <tool_call>{OBJECT}</tool_call>.", "new", "hermes (the prompt with"),
        (f"Return <tool_call>{PARAMETERS}</tool_call>.", "new", "qwen3_coder (the prompt with"),
        ("Respond with <|tool_call|> followed by a JSON list.", "new", "granite (the prompt with"),
        ("Call them.", "granitemoe", "granite (by the kind"),
        ("Call them.", "smollm3", "hermes (by the kind"),
        ("Call them.", "new", "None"),
    ],
)
def test_a_template_that_describes_calls_and_does_not_write_them(
    detected: Detect, words: str, model_type: str, expected: str
) -> None:
    found = detected(IN_WORDS.replace("WORDS", words), model_type=model_type)
    assert str(found.tools).startswith(expected)
    assert found.shows_tools


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% broken", "words", ""])
def test_a_template_that_shows_nothing(detected: Detect, template: str) -> None:
    found = detected(template)
    assert (found.tools, found.reasoning) == (None, None)


def test_a_prompt_that_opens_the_reasoning(detected: Detect) -> None:
    found = detected(chatml(opening="<think>\n"))
    assert found.reasoning is not None
    assert "opens it" in found.reasoning.how
    assert found.reply.reasoning is not None
    assert found.reply.reasoning.is_open_in("...<|im_start|>assistant\n<think>\n")


def test_marks_of_reasoning_that_no_family_has(detected: Detect) -> None:
    template = chatml().replace("think>", "muse:7>")
    found = detected(template)
    assert found.reasoning is not None
    assert found.reasoning.name == "<muse:7>...</muse:7>"
    message = parse_whole(found.reply, "<muse:7>\nwhy\n</muse:7>\n\nSo.")
    assert (message.reasoning.strip(), message.content.strip()) == ("why", "So.")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            "<fn_call>{{ call.function.name }}<args>"
            "{{ call.function.arguments | tojson }}</fn_call>",
            '<fn_call>f<args>{"a": 1}</fn_call><fn_call>g<args>{}</fn_call>',
        ),
        (
            "{% if loop.first %}<|calls|>[{% endif %}"
            '{"id": "{{ call.id }}", "tool": "{{ call.function.name }}", "input": '
            "{{ call.function.arguments | tojson }}}"
            "{% if loop.last %}]<|/calls|>{% else %}, {% endif %}",
            '<|calls|>[{"id": "x", "tool": "f", "input": {"a": 1}}, {"tool": "g", "input": {}}]'
            "<|/calls|>",
        ),
    ],
)
def test_json_in_tags_that_nobody_knows(detected: Detect, call: str, text: str) -> None:
    found = detected(chatml(call))
    assert found.tools is not None
    assert found.tools.name == "json_in_tags"
    message = parse_whole(found.reply, f"Before. {text}", {"f": {}, "g": {}})
    assert message.content == "Before."
    read = [(one.name, json.loads(one.arguments), one.is_complete) for one in message.tool_calls]
    assert read == [("f", {"a": 1}, True), ("g", {}, True)]
