"""`ReplyPlan`: how the reply to a conversation is constrained and read, by the model, the request
and the prompt; and `ParsedReply`, the events that are read."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from quire.outputs import CompletionOutput
from quire.params import SamplingParams
from quire.parsers.constraint import working_constraint
from quire.parsers.events import Arguments, CallBegins, CallEnds, Event, Message, Reasoning
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.parsers.reasoning_tags import ReasoningTokenCount
from quire.reasoning.marks import ReasoningMarks
from quire.server.conversation.conversation import Conversation, ToolUse
from quire.server.reply_plugins import ReplyReader, RequestPlugins
from quire.server.requests.prompts import PreparedPrompt
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.tokenizer import Tokenizer, detokenizer_of


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """The constraints on the reply to one prompt, and its parsing."""

    format: ReplyFormat = field(default_factory=ReplyFormat)
    tools: ToolUse = field(default_factory=ToolUse)
    is_reasoning: bool = False
    """The prompt ends inside a reasoning block."""
    may_reason: bool = True
    """The reply may begin with reasoning: the prompt does not end after a reasoning block."""
    kept_token_ids: Sequence[int] = ()
    """Special tokens that stay in the text, because the format's parser reads them."""
    num_calls_before: int = 0
    """Calls of tools in the conversation so far."""
    skips_special_tokens: bool = True
    """All other special tokens are removed from the text."""
    keeps_stop_strings: bool = False
    """The text includes the stop string that ended it."""
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    """Field of a message that holds the reasoning."""
    shows_reasoning: bool = True
    """Whether the reply includes the reasoning."""
    plugins: RequestPlugins | None = None
    """Parsers that replace the format's own."""

    @classmethod
    async def of(
        cls, model: ServedModel, asked: AnyRequest, chat: Conversation, prompt: str
    ) -> ReplyPlan:
        """The plan for a model, a request and its rendered `prompt`. Raises RequestError."""
        found, tools, reply = await model.reply_format(), chat.tool_use, asked.reply
        tools = replace(tools, rules=replace(tools.rules, level=model.args.tool_strict_level))
        if tools.is_searched and await model.describes_tools_in_words():
            from quire.parsers.tool_formats.in_words import GenericCalls  # rarely used

            found = replace(found, tools=GenericCalls())
        if found.reasoning is not None and reply.reasoning_is_content:
            found = replace(found, reasoning=replace(found.reasoning, is_content=True))
        plugins = None
        if model.plugins is not None:
            plugins = model.plugins.of_request(model.loaded_engine(), found, asked, chat)
        if plugins is not None:
            found = plugins.format
        tags, is_continued = found.reasoning, chat.continue_final_message
        keeps_special = plugins is not None and plugins.keeps_special_tokens
        return cls(
            format=found,
            tools=tools,
            is_reasoning=tags is not None and tags.is_open_in(prompt, is_continued=is_continued),
            may_reason=tags is not None and not prompt.rstrip().endswith(tags.ends),
            kept_token_ids=model.kept_tokens(found, has_tools=tools.is_searched),
            num_calls_before=sum(len(message.tool_calls or ()) for message in chat.messages),
            skips_special_tokens=not keeps_special and _skips_special_tokens(model, asked),
            keeps_stop_strings=asked.sampling.get("include_stop_str_in_output") is True,
            reasoning_field=reply.reasoning_field,
            shows_reasoning=reply.shows_reasoning,
            plugins=plugins,
        )

    @property
    def is_plain(self) -> bool:
        """The reply is plain text: it has neither reasoning nor tool calls."""
        is_told = self.plugins is not None and self.plugins.reads_reasoning
        return self.format.reasoning is None and not self.tools.is_searched and not is_told

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Schemas of the tools that may be called; None: the reply is not searched for calls."""
        return self.tools.schemas if self.tools.is_searched else None

    def parser(self, prompt_token_ids: Sequence[int] = ()) -> ReplyReader:
        """A parser for one choice."""
        if self.plugins is not None:
            return self.plugins.reader(
                self.format, self.schemas, prompt_token_ids, is_reasoning=self.is_reasoning
            )
        return ReplyParser(self.format, self.schemas, is_reasoning=self.is_reasoning)

    async def constrain(self, model: ServedModel, params: SamplingParams) -> list[str]:
        """Adds to `params` what the reply has to look like: calls of the offered tools, and after
        the reasoning the form that `params` ask for. Also marks the reasoning there.

        Returns the names of the fields that have no effect: schemas of tools that cannot be
        compiled and are optional. Raises RequestError, which names the tool or the field at fault.
        """
        params.keep_tokens(self.kept_token_ids)
        params.skip_special_tokens = self.skips_special_tokens
        content, tags = params.structured_outputs, self.format.reasoning
        holds_at_once = tags is None or model.config.structured_outputs.enable_in_reasoning
        is_given = not self.tools.is_searched and (content is None or holds_at_once)
        if tags is not None:
            params.mark_reasoning(
                ReasoningMarks(tags.begin, tags.end, self.is_reasoning, is_in_grammar=not is_given)
            )
        if is_given:
            return []
        left_out: list[str] = []
        check = model.loaded_engine().input_processor.check_grammar
        params.structured_outputs = await model.pool.run_on_thread(
            0,
            working_constraint,
            self.format,
            self.tools.rules,
            check,
            is_reasoning=self.is_reasoning,
            may_reason=self.may_reason,
            content=content,
            left_out=left_out,
        )
        return left_out


PLAIN = ReplyPlan()
"""The reply is plain text: it has neither reasoning nor tool calls."""


def _skips_special_tokens(model: ServedModel, asked: AnyRequest) -> bool:
    default = model.config.model.default_sampling_params.get("skip_special_tokens", True)
    return asked.sampling.get("skip_special_tokens", default) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt(PreparedPrompt):
    """The prompt of a conversation."""

    chat: Conversation
    reply: ReplyPlan = PLAIN

    async def constrain_reply(self, model: ServedModel, params: SamplingParams) -> list[str]:
        return await self.reply.constrain(model, params)


class ParsedReply:
    """Reads the choices of a reply, each by a parser of its own."""

    def __init__(self, prompt: PreparedPrompt, tokenizer: Tokenizer | None) -> None:
        """The reply to any prompt but that of a chat is its text. Tokens of reasoning are counted
        with `tokenizer`, if there is one."""
        self.plan = prompt.reply if isinstance(prompt, ChatPrompt) else PLAIN
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt.token_ids
        self._parsers: dict[int, ReplyReader] = {}
        self._counts: dict[int, ReasoningTokenCount] = {}
        self._are_complete: dict[int, bool] = {}
        """For each choice with calls, whether the last of them is complete."""

    def events(self, one: CompletionOutput) -> list[Event]:
        """The events of a choice's new text, in order. Calls have ids."""
        parser = self._parsers.get(one.index)
        if parser is None:
            parser = self._parsers[one.index] = self.plan.parser(self._prompt_token_ids)
            self._begin_count(one.index)
        is_last, is_cut = one.finish_reason is not None, self._is_cut(one)
        events = parser.read(one.text, one.token_ids, is_last=is_last, is_cut=is_cut)
        if (count := self._counts.get(one.index)) is not None:
            count.push(one.token_ids)
        return [*self._shown(one.index, events)]

    def message(self, one: CompletionOutput) -> Message:
        """The message of a choice that is complete."""
        return Message.of(self.events(one))

    def finish_reason(self, one: CompletionOutput) -> str | None:
        """Reason for which a choice ended, once its last events were given; None while it goes
        on."""
        if not self.ends_with_calls(one) or self.plan.tools.is_named:
            return one.finish_reason
        return "function_call" if self.plan.tools.is_legacy else "tool_calls"

    def ends_with_calls(self, one: CompletionOutput) -> bool:
        """Whether a choice ended with calls that can be run: the last of them is complete."""
        return one.finish_reason == "stop" and self._are_complete.get(one.index, False)

    def _is_cut(self, one: CompletionOutput) -> bool:
        """Whether the model did not end the choice itself."""
        is_stopped = isinstance(one.stop_reason, str) and not self.plan.keeps_stop_strings
        return one.finish_reason not in (None, "stop") or is_stopped

    def reasoning_tokens(self, index: int) -> int | None:
        """Reasoning tokens of a choice so far; None if they are not counted."""
        count = self._counts.get(index)
        return None if count is None else count.count(self._parsers[index].reasoning_spans)

    def _begin_count(self, index: int) -> None:
        if self.plan.format.reasoning is None or self._tokenizer is None:
            return
        detokenizer = detokenizer_of(
            self._tokenizer,
            self._prompt_token_ids,
            skip_special_tokens=self.plan.skips_special_tokens,
            kept_token_ids=self.plan.kept_token_ids,
        )
        self._counts[index] = ReasoningTokenCount(detokenizer)

    def _new_id(self, call: CallBegins) -> str:
        tools = self.plan.format.tools
        index = self.plan.num_calls_before + call.index
        own = None if tools is None else tools.make_id(call.name, index)
        return own or f"chatcmpl-tool-{secrets.token_hex(16)}"

    def _shown(self, index: int, events: Iterable[Event]) -> Iterable[Event]:
        """The events that a reply includes: without those that the request excludes; calls get
        ids."""
        for event in events:
            if isinstance(event, Reasoning):
                if self.plan.shows_reasoning:
                    yield event
            elif isinstance(event, CallBegins | Arguments | CallEnds):
                if event.index and not self.plan.tools.rules.is_parallel:
                    continue
                if not isinstance(event, Arguments):
                    self._are_complete[index] = isinstance(event, CallEnds)
                if isinstance(event, CallBegins) and event.id is None:
                    event = replace(event, id=self._new_id(event))
                yield event
            else:
                yield event
