"""An object for each mark, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes and
what differs from it by its marks."""

from __future__ import annotations

import json

from quire.parsers.json_calls import CallKeys, read_name
from quire.parsers.reader import Parse
from quire.parsers.reply import Reply
from quire.parsers.tool_formats.json.marked import MarkedCalls


class HermesCalls(MarkedCalls):
    """Nous Hermes, Qwen 2.5 and 3, Granite 4 and many others. Line breaks as Qwen has them."""

    markers = ("<tool_call>",)
    ends = ("</tool_call>",)
    before, between, after = "<tool_call>\n", "\n", "\n</tool_call>"


class LongcatCalls(MarkedCalls):
    """LongCat-Flash."""

    markers = ("<longcat_tool_call>",)
    ends = ("</longcat_tool_call>",)
    before, between, after = "<longcat_tool_call>\n", "\n", "\n</longcat_tool_call>"


class Granite20bCalls(MarkedCalls):
    """Granite 20B function calling: a mark before each object, none after it."""

    markers = ("<function_call>",)
    before, between = "<function_call> ", "\n"


class InternLmCalls(MarkedCalls):
    """InternLM 2 and 2.5."""

    markers = ("<|action_start|><|plugin|>",)
    ends = ("<|action_end|>",)
    keys = CallKeys(arguments=("parameters", "arguments"))
    before, between, after = "<|action_start|><|plugin|>\n", "\n", "<|action_end|>"


class ErnieCalls(MarkedCalls):
    """ERNIE 4.5 Thinking, which puts an answer without calls between marks too."""

    answer_marks = ("<response>\n", "<response>", "</response>")
    markers = ("<tool_call>", *answer_marks)
    ends = ("</tool_call>",)
    before, between, after = "<tool_call>\n", "\n", "\n</tool_call>"


class GigaChatCalls(MarkedCalls):
    """GigaChat 3 and 3.1. The text before a call ends with a mark of its own."""

    answer_marks = ("<|message_sep|>",)
    markers = ("<|function_call|>", "function call<|role_sep|>", *answer_marks)
    before, between = "<|function_call|>", "\n"


class InklingCalls(MarkedCalls):
    """Inkling, which writes blocks; the name of a tool may stand before its block too."""

    answer_marks = ("<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>")
    markers = ("<|content_invoke_tool_json|>", "<|message_model|>", *answer_marks)
    ends = ("<|end_message|>", "<|content_model_end_sampling|>")
    keys = CallKeys(arguments=("args", "arguments"))
    before, after = "<|message_model|><|content_invoke_tool_json|>", "<|end_message|>"

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """What is between a message's begin and its block is dropped."""
        if reply.marker != "<|message_model|>":
            return (yield from super().read_calls(reply))
        yield from read_name(reply.reader, "<|")
        return (yield from reply.reader.starts_with("<|")) is not None

    def head(self, name: str) -> str:
        """Without spaces."""
        return f'{{"name":{json.dumps(name)},"args":'
