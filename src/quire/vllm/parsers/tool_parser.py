"""`ToolParser`: a parser of calls of tools, as vLLM's base class is; and those that are known.

The class of one of Quire's formats parses with that format: `get_tool_parser("hermes")`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from quire.parsers.events import Arguments, CallBegins, CallEnds, Event, Message
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.parsers.registry import TOOL_FORMATS, reply_format
from quire.vllm.parsers.families import Stream, WholeRules, whole_rules
from quire.vllm.parsers.records import (
    DeltaMessage,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
    delta_of,
    make_tool_call_id,
)
from quire.vllm.parsers.registry import ParserRegistry


class ToolParser:
    """Reads one reply. A subclass has `extract_tool_calls` and `extract_tool_calls_streaming`."""

    supports_required_and_named: bool = True
    """Whether a call that a request demands is held to a form of the server's, which then reads it.
    False: the model writes such calls as all others, and this parser reads them."""
    structural_tag_model: str | None = None
    default_tool_strict_level: Any = None
    engine_based_streaming: bool = False

    def __init__(self, tokenizer: Any, tools: Sequence[Any] | None = None) -> None:
        """`tokenizer`: the model's, as `get_tokenizer()` gives it. `tools`: the request's."""
        self.model_tokenizer = tokenizer
        self.tools = list(tools or ())
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        """The calls so far, each with `name` and `arguments`."""
        self.current_tool_id = -1
        self.current_tool_name_sent = False
        self.streamed_args_for_tool: list[str] = []
        """The arguments of each call that were sent so far."""

    @cached_property
    def vocab(self) -> dict[str, int]:
        """The tokenizer's tokens and their ids."""
        return dict(self.model_tokenizer.get_vocab())

    def adjust_request(self, request: Any) -> Any:
        """May set `request.skip_special_tokens` to False, for a text with the special tokens."""
        return request

    def get_structural_tag(self, request: Any, **options: Any) -> None:
        """Returns None: the model decides how calls look."""

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """The calls of a whole reply, after its reasoning."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_tool_calls")

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """The delta of the next text; None: nothing to send yet."""
        raise NotImplementedError(f"{type(self).__name__} has no extract_tool_calls_streaming")

    def get_remaining_unstreamed_args(self) -> str:
        """Arguments of the last call that were not sent yet."""
        if not self.prev_tool_call_arr:
            return ""
        last = len(self.prev_tool_call_arr) - 1
        found = self.prev_tool_call_arr[last].get("arguments", {})
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        sent = self.streamed_args_for_tool[last:][:1]
        return text.removeprefix(sent[0]) if sent and text.startswith(sent[0]) else ""


class FormatToolParser(ToolParser):
    """Parses with one of Quire's formats."""

    format: ReplyFormat
    rules: WholeRules = WholeRules()

    def __init__(self, tokenizer: Any, tools: Sequence[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._stream = Stream()

    def adjust_request(self, request: Any) -> Any:
        """With the special tokens, which begin and end the calls of many models."""
        if request.tools and request.tool_choice != "none":
            request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """The calls; the content is None where there is none."""
        schemas = self._schemas(request)
        parser = ReplyParser(self.format, schemas)
        events = [*parser.feed(model_output), *parser.finish()]
        message = Message.of(events)
        num_ended = sum(isinstance(event, CallEnds) for event in events)
        if self.rules.refuses(message.tool_calls, num_ended, schemas):
            return ExtractedToolCallInformation(
                tools_called=False, tool_calls=[], content=model_output
            )
        content = message.content
        if message.tool_calls:
            content = self.rules.content_of(model_output, content, self.format.tools)
        calls = [
            ToolCall(
                id=call.id or self._new_id(call.name, index),
                function=FunctionCall(name=call.name, arguments=call.arguments),
            )
            for index, call in enumerate(message.tool_calls)
        ]
        return ExtractedToolCallInformation(
            tools_called=bool(calls), tool_calls=calls, content=content or None
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """Without a text before it, `delta_text` begins a new reply."""

        def new_parser() -> ReplyParser:
            self.prev_tool_call_arr, self.streamed_args_for_tool = [], []
            return ReplyParser(self.format, self._schemas(request))

        events, before = self._stream.feed(new_parser, previous_text, current_text, delta_text)
        self._note(before)
        self._note(events)
        return delta_of(events, self._new_id)

    def _note(self, events: Iterable[Event]) -> None:
        """Keeps the calls so far, which scripts look up."""
        for event in events:
            if isinstance(event, CallBegins):
                self.current_tool_id = event.index
                self.prev_tool_call_arr.append({"name": event.name, "arguments": ""})
                self.streamed_args_for_tool.append("")
            elif isinstance(event, Arguments):
                self.streamed_args_for_tool[event.index] += event.text
                self.prev_tool_call_arr[event.index]["arguments"] += event.text

    def _new_id(self, name: str, index: int) -> str:
        """In the form that the model's template takes."""
        tools = self.format.tools
        return (tools.make_id(name, index) if tools else None) or make_tool_call_id()

    def _schemas(self, request: Any) -> Mapping[str, Mapping[str, Any]]:
        tools = getattr(request, "tools", None) or self.tools
        return dict(map(_name_and_schema, tools))


def _name_and_schema(tool: Any) -> tuple[str, Mapping[str, Any]]:
    """Name and schema of a tool, given as an object or as a JSON mapping."""
    function = _value(tool, "function") or tool
    return _value(function, "name"), _value(function, "parameters") or {}


def _value(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)


class ToolParserManager(ParserRegistry):
    """All parsers of calls by name: those of plug-ins, and the formats of Quire."""

    base = ToolParser
    kind = "Tool parser"
    formats = TOOL_FORMATS
    option = "tool_parser_plugin"

    @classmethod
    def make(cls, name: str) -> type[FormatToolParser]:
        values = {"format": reply_format(None, TOOL_FORMATS[name]()), "rules": whole_rules(name)}
        title = f"{name.title().replace('_', '').replace('-', '')}ToolParser"
        return type(title, (FormatToolParser,), values)

    @classmethod
    def get_tool_parser(cls, name: str) -> type[ToolParser]:
        """The class with this name. Raises KeyError."""
        return cls.get(name)

    @classmethod
    def import_tool_parser(cls, plugin_path: str) -> None:
        """Runs a file, which registers its parsers. Raises ConfigError."""
        cls.run_file(plugin_path)


__getattr__ = ToolParserManager.attribute
