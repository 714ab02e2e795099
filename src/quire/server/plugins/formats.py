"""Parsers of plug-ins as reply formats: registered under the name that the operator chose.

So everything that asks for a format by its name finds them. Only what a server does with a reply,
`ReplyPlan.parser`, knows that they are not formats of Quire.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from quire.errors import ConfigError
from quire.parsers.format import Schemas, ToolFormat
from quire.parsers.reader import Parse
from quire.parsers.reasoning.tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from quire.parsers.reply import Reply
from quire.parsers.tool_formats.json.generic import GenericCalls
from quire.server.plugins.reasoning_parser import ReasoningParser, ReasoningParserManager
from quire.server.plugins.tool_parser import ToolParser, ToolParserManager
from quire.structured.tags.parts import Part


class PluginCalls(ToolFormat):
    """Calls that a plug-in reads. Nothing else knows how they are written."""

    parser: ClassVar[type[ToolParser]]
    has_grammar = False

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads nothing: the plug-in has read the text."""
        yield from ()
        return False

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Any text."""
        return {"type": "any_text"}

    def literal_texts(self) -> tuple[str, ...]:
        """Literal texts of the form that calls have if the server demands them (`GenericCalls`)."""
        return GenericCalls().literal_texts()


@dataclass(frozen=True)
class PluginTags(ReasoningTags):
    """Reasoning that a plug-in reads. `begin` and `end` are empty if it does not tell them."""

    parser: type[ReasoningParser] = ReasoningParser


def load_plugins(
    tool_plugin: str, reasoning_plugin: str, tool_name: str | None, reasoning_name: str
) -> None:
    """Runs the files that were named, and registers the parsers with these names, if they have
    them. Raises ConfigError."""
    if tool_plugin:
        ToolParserManager.import_tool_parser(tool_plugin)
    if reasoning_plugin:
        ReasoningParserManager.import_reasoning_parser(reasoning_plugin)
    calls = ToolParserManager.find(tool_name or "")
    if calls is not None and tool_name:
        TOOL_FORMATS[tool_name] = type(calls.__name__, (PluginCalls,), {"parser": calls})
    reasoning = ReasoningParserManager.find(reasoning_name)
    if reasoning is not None:
        REASONING_FORMATS[reasoning_name] = _tags(reasoning)


def _tags(parser: type[ReasoningParser]) -> PluginTags:
    """The marks are asked of an object without a tokenizer: for most they are constants."""
    begin = end = None
    with suppress(Exception):
        bare = parser.__new__(parser)
        begin, end = bare.reasoning_start_str, bare.reasoning_end_str
    if not begin or not end:
        begin = end = ""
    return PluginTags(begin, end, parser=parser)


def check_plugins(tool_name: str | None, reasoning_name: str, tokenizer: Any) -> None:
    """Makes the parsers once: some need tokens that a tokenizer may lack. Raises ConfigError."""
    calls, tags = TOOL_FORMATS.get(tool_name or ""), REASONING_FORMATS.get(reasoning_name)
    try:
        if calls is not None and issubclass(calls, PluginCalls):
            calls.parser(tokenizer)
        if isinstance(tags, PluginTags):
            tags.parser(tokenizer)
    except Exception as error:
        raise ConfigError(
            f"the plug-in of {tool_name or ''} {reasoning_name} cannot be used with this model: "
            f"{type(error).__name__}: {error}"
        ) from error
