"""`plugins_of`: which parsers of plug-ins read the reply to a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.parsers.format import ReplyFormat
    from quire.server.conversation.conversation import Conversation
    from quire.server.generation.request import AnyRequest
    from quire.server.plugins.reader import PluginReader
    from quire.server.plugins.reasoning_parser import ReasoningParser
    from quire.server.plugins.requests import ChatCompletionRequest
    from quire.server.plugins.tool_parser import ToolParser
    from quire.server.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class RequestPlugins:
    """The parsers of one request."""

    format: ReplyFormat
    """The reply format for what no plug-in parses."""
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
        from quire.server.plugins.reader import PluginReader

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


def plugins_of(
    model: ServedModel, format: ReplyFormat, asked: AnyRequest, chat: Conversation
) -> RequestPlugins | None:
    """None where no plug-in reads any of it. `format`: as it was found for the model."""
    args = model.args
    if not args.tool_parser_plugin and not args.reasoning_parser_plugin:
        return None
    from quire.parsers.tool_formats.json.generic import GenericCalls
    from quire.server.plugins.formats import PluginCalls, PluginTags

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
    tokenizer = model.loaded_engine().get_tokenizer()
    adjusted = _chat_completion(asked, chat)
    if parser is not None:
        adjusted = _made(parser, tokenizer, adjusted).adjust_request(adjusted) or adjusted
    if reasoning is not None:
        adjusted = reasoning(tokenizer).adjust_request(adjusted) or adjusted
    keeps = adjusted.skip_special_tokens is False
    return RequestPlugins(format, parser, reasoning, tokenizer, adjusted, keeps)


def _chat_completion(asked: AnyRequest, chat: Conversation) -> ChatCompletionRequest:
    """The request as vLLM has it, for a parser that looks at it."""
    from quire.server.apis.chat.schema import ChatRequest
    from quire.server.plugins.requests import ChatCompletionRequest

    names, use = set(ChatRequest.__struct_fields__), chat.tool_use
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
        chat_template_kwargs=chat.variables,
        **{name: value for name, value in asked.sampling.items() if name in names},
    ))  # fmt: skip


def _made(parser: type[ToolParser], tokenizer: Any, request: Any) -> ToolParser:
    """vLLM's base class takes the tools too, but its documentation has parsers that do not."""
    try:
        return parser(tokenizer, request.tools)
    except TypeError:
        return parser(tokenizer)
