"""Parsers of plug-ins as a server uses them: `load`, `check` and `of_request`.

They are registered as reply formats, under the name that the operator chose, so that everything
that asks for a format by its name finds them. Only `server/reply_plugins.py` calls this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from quire.chat.job import VARIABLES
from quire.errors import ConfigError
from quire.parsers.events import Reply
from quire.parsers.format import ReplyFormat
from quire.parsers.reader import Parse
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.parsers.tool_formats.in_words import GenericCalls
from quire.server.apis.chat.schema import ChatRequest
from quire.structured.tags.parts import Part
from quire.vllm.parsers.reader import PluginReader
from quire.vllm.parsers.reasoning_parser import ReasoningParser, ReasoningParserManager
from quire.vllm.parsers.requests import ChatCompletionRequest
from quire.vllm.parsers.tool_parser import ToolParser, ToolParserManager

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM
    from quire.server.conversation.conversation import Conversation
    from quire.server.requests.request import AnyRequest


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


def load(
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


def check(tool_name: str | None, reasoning_name: str, tokenizer: Any) -> None:
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


@dataclass(frozen=True, slots=True)
class RequestPlugins:
    """The parsers of one request."""

    format: ReplyFormat
    calls: type[ToolParser] | None
    reasoning: type[ReasoningParser] | None
    tokenizer: Any
    request: Any
    """The request as vLLM's `ChatCompletionRequest`."""
    keeps_special_tokens: bool

    @property
    def reads_reasoning(self) -> bool:
        """Whether one of them reads the reasoning."""
        return self.reasoning is not None

    def reader(
        self,
        format: ReplyFormat,
        schemas: Mapping[str, Mapping[str, Any]] | None,
        prompt_token_ids: Sequence[int],
        *,
        is_reasoning: bool,
    ) -> PluginReader:
        """A reader for one choice, with parsers of its own, because they have state."""
        made = None if self.reasoning is None else self.reasoning(self.tokenizer)
        calls = None if self.calls is None else _made(self.calls, self.tokenizer, self.request)
        return PluginReader(
            format,
            schemas,
            reasoning=made,
            calls=calls,
            request=self.request,
            prompt_token_ids=prompt_token_ids,
            is_reasoning=is_reasoning,
        )


def of_request(
    engine: AsyncLLM, format: ReplyFormat, asked: AnyRequest, chat: Conversation
) -> RequestPlugins | None:
    """None if no plug-in reads any of the reply. `format`: as it was found for the model."""
    tags, calls, tools = format.reasoning, format.tools, chat.tool_use
    reasoning = tags.parser if isinstance(tags, PluginTags) else None
    parser = calls.parser if isinstance(calls, PluginCalls) and tools.is_searched else None
    if reasoning is not None and tags is not None and not tags.begin:
        format = replace(format, reasoning=None)
    is_demanded = parser is not None and tools.rules.choice == "required"
    if parser is not None and is_demanded and parser.supports_required_and_named:
        parser, format = None, replace(format, tools=GenericCalls())
    if reasoning is None and parser is None:
        return (
            None
            if format.tools is calls
            else RequestPlugins(format, None, None, None, None, keeps_special_tokens=False)
        )
    tokenizer = engine.get_tokenizer()
    adjusted = _chat_completion(asked, chat)
    if parser is not None:
        adjusted = _made(parser, tokenizer, adjusted).adjust_request(adjusted) or adjusted
    if reasoning is not None:
        adjusted = reasoning(tokenizer).adjust_request(adjusted) or adjusted
    keeps = adjusted.skip_special_tokens is False
    return RequestPlugins(format, parser, reasoning, tokenizer, adjusted, keeps)


def _chat_completion(asked: AnyRequest, chat: Conversation) -> ChatCompletionRequest:
    """The request as vLLM has it, for a parser that looks at it."""
    names, use = set(ChatRequest.__struct_fields__), chat.tool_use
    others: dict[str, Any] = {k: value for k, value in asked.sampling.items() if k in names}
    choice: Any = use.rules.choice if chat.tools else None
    if use.is_named:
        [name] = use.schemas
        choice = {"type": "function", "function": {"name": name}}
    return ChatCompletionRequest.of(ChatRequest(
        messages=chat.messages,
        model=asked.model,
        stream=asked.reply.stream,
        tools=chat.tools,
        tool_choice=choice,
        include_reasoning=asked.reply.shows_reasoning,
        structured_outputs=asked.constraint,
        reasoning_effort=chat.effort,  # type: ignore[arg-type]
        **{VARIABLES: chat.variables, **others},
    ))  # fmt: skip


def _made(parser: type[ToolParser], tokenizer: Any, request: Any) -> ToolParser:
    """vLLM's base class takes the tools too, but its documentation has parsers that do not."""
    try:
        return parser(tokenizer, request.tools)
    except TypeError:
        return parser(tokenizer)
