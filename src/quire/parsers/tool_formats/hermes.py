"""Calls as one JSON object per mark, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`:
Hermes, and formats that differ only in their marks."""

from __future__ import annotations

import json

from quire.parsers.events import Reply
from quire.parsers.json_calls import CallKeys, read_name
from quire.parsers.reader import Parse
from quire.parsers.tool_format import MarkedCalls


class HermesCalls(MarkedCalls):
    """Nous Hermes, Qwen 2.5 and 3, Granite 4 and many others. Line breaks are those of Qwen."""

    markers = ("<tool_call>",)
    ends = ("</tool_call>",)
    before, between, after = "<tool_call>\n", "\n", "\n</tool_call>"


class LongcatCalls(MarkedCalls):
    """LongCat-Flash."""

    markers = ("<longcat_tool_call>",)
    ends = ("</longcat_tool_call>",)
    before, between, after = "<longcat_tool_call>\n", "\n", "\n</longcat_tool_call>"


class Granite20bCalls(MarkedCalls):
    """Granite 20B function calling: a mark before each object, and none after it."""

    markers = ("<function_call>",)
    before, between = "<function_call> ", "\n"


class InternLmCalls(MarkedCalls):
    """InternLM 2 and 2.5."""

    markers = ("<|action_start|><|plugin|>",)
    ends = ("<|action_end|>",)
    keys = CallKeys(arguments=("parameters", "arguments"))
    before, between, after = "<|action_start|><|plugin|>\n", "\n", "<|action_end|>"


class ErnieCalls(MarkedCalls):
    """ERNIE 4.5 Thinking, which also puts marks around an answer without calls."""

    answer_marks = ("<response>\n", "<response>", "</response>")
    markers = ("<tool_call>", *answer_marks)
    ends = ("</tool_call>",)
    before, between, after = "<tool_call>\n", "\n", "\n</tool_call>"


class GigaChatCalls(MarkedCalls):
    """GigaChat 3 and 3.1. A mark ends the text before a call."""

    answer_marks = ("<|message_sep|>",)
    markers = ("<|function_call|>", "function call<|role_sep|>", *answer_marks)
    before, between = "<|function_call|>", "\n"


class InklingCalls(MarkedCalls):
    """Inkling, which writes blocks; the tool's name may also precede its block."""

    answer_marks = ("<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>")
    markers = ("<|content_invoke_tool_json|>", "<|message_model|>", *answer_marks)
    ends = ("<|end_message|>", "<|content_model_end_sampling|>")
    keys = CallKeys(arguments=("args", "arguments"))
    before, after = "<|message_model|><|content_invoke_tool_json|>", "<|end_message|>"

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Drops the text between a message's beginning and its block."""
        if reply.marker != "<|message_model|>":
            return (yield from super().read_calls(reply))
        yield from read_name(reply.reader, "<|")
        return (yield from reply.reader.starts_with("<|")) is not None

    def head(self, name: str) -> str:
        """The beginning of a call, without spaces."""
        return f'{{"name":{json.dumps(name)},"args":'
