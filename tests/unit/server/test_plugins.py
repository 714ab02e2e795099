"""Parsers of plug-ins, written for vLLM's base classes, in the place of Quire's formats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.errors import ConfigError
from quire.parsers.events import CallEnds
from quire.parsers.format import ReplyFormat
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from quire.vllm.parsers.of_server import load as load_plugins
from quire.vllm.parsers.reasoning_parser import ReasoningParserManager
from quire.vllm.parsers.records import CallEvents, DeltaFunctionCall, DeltaMessage, DeltaToolCall
from quire.vllm.parsers.tool_parser import ToolParserManager

from .conftest import Harness
from .test_completions import events_of
from .test_tool_replies import ask, called, streamed

PLUGIN = '''
import json

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall, DeltaMessage, DeltaToolCall, ExtractedToolCallInformation, FunctionCall,
    ToolCall,
)
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.tool_parsers import ToolParser, ToolParserManager


@ToolParserManager.register_module("arrows")
class ArrowParser(ToolParser):
    """A call is `->name {...}` at the end of the reply."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        assert isinstance(self.vocab, dict)

    def adjust_request(self, request):
        assert [message["role"] for message in request.messages] == ["user"]
        assert request.tools[0].function.name == "f"
        return request

    def extract_tool_calls(self, model_output, request):
        content, arrow, call = model_output.partition("->")
        if not arrow:
            return ExtractedToolCallInformation(
                tools_called=False, tool_calls=[], content=model_output)
        name, _, arguments = call.partition(" ")
        call = ToolCall(type="function", function=FunctionCall(name=name, arguments=arguments))
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=[call], content=content or None)

    def extract_tool_calls_streaming(
        self, previous_text, current_text, delta_text, previous_token_ids, current_token_ids,
        delta_token_ids, request,
    ):
        assert previous_text + delta_text == current_text
        assert [*previous_token_ids, *delta_token_ids] == list(current_token_ids)
        at = current_text.find("-")
        if at < 0:
            return DeltaMessage(content=delta_text)
        call = current_text[at + 2:]
        before = current_text[len(previous_text):at]  # a delta may have text and a call
        if not self.current_tool_name_sent:
            if " " not in call:
                return DeltaMessage(content=before) if before else None
            self.current_tool_name_sent = True
            name, _, arguments = call.partition(" ")
            self.prev_tool_call_arr = [{"name": name, "arguments": {}}]
            function = DeltaFunctionCall(name=name, arguments=arguments)
        else:
            function = DeltaFunctionCall(arguments=delta_text)
        delta = DeltaToolCall(
            index=0, id=None if previous_text[at:].count(" ") else "call_1", type="function",
            function=function.model_dump(exclude_none=True))
        return DeltaMessage(content=before or None, tool_calls=[delta])

    def get_remaining_unstreamed_args(self):
        return ""


class StarParser(ReasoningParser):
    """Reasoning ends at the first star."""

    def set_prompt_token_ids(self, prompt_token_ids):
        self.num_prompt_tokens = len(prompt_token_ids)

    def is_reasoning_end(self, input_ids):
        return any("*" in self.model_tokenizer.decode([one]) for one in input_ids)

    def extract_content_ids(self, input_ids):
        ids = list(input_ids)
        for n in range(len(ids)):
            if self.is_reasoning_end(ids[:n + 1]):
                return ids[n + 1:]
        return []

    def extract_reasoning(self, model_output, request):
        if not self.num_prompt_tokens:
            raise ValueError("there is no prompt")
        reasoning, star, content = model_output.partition("*")
        return reasoning, content if star else None

    def extract_reasoning_streaming(
        self, previous_text, current_text, delta_text, previous_token_ids, current_token_ids,
        delta_token_ids,
    ):
        if not self.num_prompt_tokens:
            raise ValueError("there is no prompt")
        reasoning, star, content = delta_text.partition("*")
        return DeltaMessage(reasoning=reasoning or None, content=content or None)


ReasoningParserManager.register_module("stars", module=StarParser)
ToolParserManager.register_lazy_module(
    name="later", module_path="vllm.tool_parsers.later", class_name="ArrowParser")


class Broken(ArrowParser):
    def extract_tool_calls(self, model_output, request):
        raise SystemExit("broken")

    def extract_tool_calls_streaming(self, *args):
        raise RuntimeError("broken")


ToolParserManager.register_module(module=Broken)
'''
REPLY = 'hm*I look->f {"a": 1}'


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "arrow_plugin.py"
    path.write_text(PLUGIN)
    kept = [
        (each, dict(each))
        for each in (
            TOOL_FORMATS,
            REASONING_FORMATS,
            ToolParserManager.given,
            ToolParserManager.lazy_parsers,
            ReasoningParserManager.given,
        )
    ]
    yield path
    for each, before in kept:
        each.clear()
        each.update(before)  # type: ignore[arg-type]
    ToolParserManager.imported.clear()
    ReasoningParserManager.imported.clear()
    sys.modules.pop("arrow_plugin", None)


def serving(make_scripted: Any, plugin: Path, text: str, tools: str, reasoning: str) -> Harness:
    load_plugins(str(plugin), "", tools, reasoning)
    harness: Harness = make_scripted(text, tool_parser_plugin=str(plugin), tool_call_parser=tools)
    tags = REASONING_FORMATS[reasoning] if reasoning else None
    harness.model.found_format = ReplyFormat(tags, TOOL_FORMATS[tools]())
    return harness


BODY = {
    "messages": [{"role": "user", "content": "x"}], "max_tokens": 400,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
}  # fmt: skip


@pytest.mark.parametrize("tools", ["arrows", "later"])
def test_reasoning_and_calls_whole_and_streamed(
    make_scripted: Any, plugin: Path, tools: str
) -> None:
    harness = serving(make_scripted, plugin, REPLY, tools, "stars")
    choice = ask(harness, **BODY)
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "I look")
    assert called(message) == [("f", '{"a": 1}')]
    assert choice["finish_reason"] == "tool_calls"
    told, reason = streamed(harness, **BODY)
    assert (told["reasoning"], told["content"]) == ("hm", "I look")
    assert called(told) == [("f", '{"a": 1}')]
    assert reason == "tool_calls"


def test_calls_of_a_plugin_behind_reasoning_of_a_format(make_scripted: Any, plugin: Path) -> None:
    harness = serving(make_scripted, plugin, '<think>hm</think>I->f {"a": 1}', "arrows", "qwen3")
    for message in (ask(harness, **BODY)["message"], streamed(harness, **BODY)[0]):
        assert (message["reasoning"], message["content"]) == ("hm", "I")
        assert called(message) == [("f", '{"a": 1}')]


def test_without_tools_the_plugin_of_calls_reads_nothing(make_scripted: Any, plugin: Path) -> None:
    harness = serving(make_scripted, plugin, REPLY, "arrows", "stars")
    message = ask(harness, messages=BODY["messages"], tools=None)["message"]
    assert (message["reasoning"], message["content"]) == ("hm", 'I look->f {"a": 1}')


def test_a_plugin_that_raises_leaves_the_text_as_content(
    make_scripted: Any, plugin: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = serving(make_scripted, plugin, "a->f {}", "Broken", "")
    assert ask(harness, **BODY)["message"]["content"] == "a->f {}"
    assert "Broken failed" in caplog.text
    message, reason = streamed(harness, **BODY)
    assert (message["content"], reason) == ("a->f {}", "stop")


def test_a_demanded_call_has_a_form_that_the_server_reads(make_scripted: Any, plugin: Path) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    harness = serving(make_scripted, plugin, text, "arrows", "")
    message = ask(harness, **BODY, tool_choice="required")["message"]
    assert called(message) == [("f", '{"a": 1}')]


def test_streams_have_usage_of_reasoning(make_scripted: Any, plugin: Path) -> None:
    harness = serving(make_scripted, plugin, REPLY, "arrows", "stars")
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(harness.post("/v1/chat/completions", {**BODY, **options}))
    assert events[-1]["usage"]["completion_tokens"] > 0


def test_what_is_wrong_with_a_plugin_is_told(plugin: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file; name a Python file"):
        load_plugins(str(plugin.with_name("other.py")), "", "arrows", "")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_plugins("no_such_module", "", "arrows", "")
    plugin.write_text("1 / 0")
    with pytest.raises(ConfigError, match="ends with ZeroDivisionError"):
        load_plugins("", str(plugin), "arrows", "")
    plugin.write_text(PLUGIN.replace('class_name="ArrowParser"', 'class_name="Absent"'))
    with pytest.raises(ConfigError, match=r"later\.Absent cannot be imported"):
        load_plugins(str(plugin), "", "later", "")


@pytest.mark.parametrize(
    ("arguments", "is_cut", "is_complete"),
    [('{"a": 1}', True, True), ('{"a": ', True, False), ('{"a": ', False, True)],
)
def test_a_cut_call_of_a_plugin_is_not_complete(
    arguments: str, is_cut: bool, is_complete: bool
) -> None:
    calls = CallEvents()
    function = DeltaFunctionCall(name="f", arguments=arguments)
    delta = DeltaMessage(tool_calls=[DeltaToolCall(index=0, function=function)])
    events = [*calls.of_delta(delta), *calls.end("", is_cut=is_cut)]
    assert (events[-1] == CallEnds(0)) is is_complete
