"""`plugins_of`: which parsers of plug-ins read the reply to a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.parsers.format import ReplyFormat
    from quire.server.context import ServerContext
    from quire.server.plugins.reader import PluginReader
    from quire.server.plugins.reasoning_parser import ReasoningParser
    from quire.server.plugins.tool_parser import ToolParser
    from quire.server.requests.chats.reply_plan import ReplyPlan
    from quire.server.requests.chats.tool_use import ToolUse
    from quire.server.schema.chat import ChatRequest


@dataclass(frozen=True, slots=True)
class RequestPlugins:
    """Those of one request."""

    format: ReplyFormat
    """What the server itself knows of the reply: marks of reasoning, calls that it demands."""
    calls: type[ToolParser] | None
    reasoning: type[ReasoningParser] | None
    tokenizer: Any
    request: Any
    """As vLLM's `ChatCompletionRequest`."""
    keeps_special_tokens: bool

    @property
    def reads_reasoning(self) -> bool:
        """Whether one of them reads the reasoning."""
        return self.reasoning is not None

    def reader(self, plan: ReplyPlan, prompt_token_ids: Sequence[int]) -> PluginReader:
        """For one choice. Each has parsers of its own, which keep what they have read."""
        from quire.server.plugins.reader import PluginReader

        made = None if self.reasoning is None else self.reasoning(self.tokenizer)
        calls = None if self.calls is None else _made(self.calls, self.tokenizer, self.request)
        return PluginReader(
            plan.format,
            plan.schemas,
            reasoning=made,
            calls=calls,
            request=self.request,
            prompt_token_ids=prompt_token_ids,
            is_reasoning=plan.is_reasoning,
        )


def plugins_of(
    context: ServerContext, format: ReplyFormat, request: ChatRequest, tools: ToolUse
) -> RequestPlugins | None:
    """None where no plug-in reads any of it. `format`: as it was found for the model."""
    args = context.args
    if not args.tool_parser_plugin and not args.reasoning_parser_plugin:
        return None
    from quire.parsers.tool_formats.json.generic import GenericCalls
    from quire.server.plugins.formats import PluginCalls, PluginTags
    from quire.server.plugins.requests import ChatCompletionRequest

    tags, calls = format.reasoning, format.tools
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
    tokenizer = context.loaded_engine().get_tokenizer()
    told = ChatCompletionRequest.of(request)
    if parser is not None:
        told = _made(parser, tokenizer, told).adjust_request(told) or told
    if reasoning is not None:
        told = reasoning(tokenizer).adjust_request(told) or told
    keeps = told.skip_special_tokens is False
    return RequestPlugins(format, parser, reasoning, tokenizer, told, keeps)


def _made(parser: type[ToolParser], tokenizer: Any, request: Any) -> ToolParser:
    """vLLM's base class takes the tools too, but its documentation has parsers that do not."""
    try:
        return parser(tokenizer, request.tools)
    except TypeError:
        return parser(tokenizer)
