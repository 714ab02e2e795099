"""`/v1/chat/completions`: the writers of replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.parsers.events import Arguments, CallBegins, Content, Event, Message, Reasoning
from quire.server.apis.chat.schema import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatResponse,
    Delta,
    DeltaFunction,
    DeltaToolCall,
    ReplyMessage,
    ReplyToolCall,
)
from quire.server.conversation.chat_text import texts_of
from quire.server.conversation.reply_plan import ChatPrompt, ParsedReply, ReplyPlan
from quire.server.generation.logprobs import prompt_logprobs
from quire.server.generation.reply import ReplyHead, Update
from quire.server.generation.usage import added
from quire.server.generation.writer import ReplyWriter
from quire.server.json_pieces import JsonList
from quire.server.requests.prompts import PreparedPrompt
from quire.server.requests.request import AnyRequest
from quire.tokenizer import Tokenizer


class ChatWriter(ReplyWriter[ChatChunk]):
    """Writes the replies to one conversation."""

    def __init__(
        self,
        asked: AnyRequest,
        head: ReplyHead,
        prompt: PreparedPrompt,
        tokenizer: Tokenizer | None,
        role: str,
    ) -> None:
        """`role`: that of the reply, unless it goes on with the last message."""
        options, listed = asked.reply, asked.sampling.get("logprob_token_ids")
        num_top = len(listed) + 1 if listed else options.num_top or 0
        super().__init__(options, head, [prompt], tokenizer, num_top=num_top, chunk_kind=ChatChunk)
        self._prompt = prompt
        self._reply = ParsedReply(prompt, tokenizer)
        self._role, self._echo = role, ""
        if isinstance(prompt, ChatPrompt):
            last = prompt.chat.messages[-1]
            self._role = role if prompt.chat.add_generation_prompt else last.role
            if options.echo and last.role == self._role:
                self._echo = "\n".join(texts_of(last))
        self._has_begun = False
        self.repeats_prompt = bool(self._wants_ids or self._echo or options.has_prompt_text)

    def whole(self, finals: Sequence[RequestOutput]) -> ChatResponse:
        [final] = finals
        choices = JsonList()
        for one in final.outputs:
            choices.add([self.choice(one, one.index)])
        response = self._response(ChatResponse, choices, finals)
        if isinstance(final.prompt_logprobs, FlatLogprobs):
            response.prompt_logprobs = prompt_logprobs(final.prompt_logprobs).as_field()
        if self._wants_ids:
            response.prompt_token_ids = JsonList(self._prompt.token_ids).as_field()
        if self._options.has_prompt_text:
            response.prompt_text = self._prompt.text
        return response

    def events(self, updates: Sequence[Update]) -> bytes:
        """Before the first chunk, one of each choice's role, and one of its echo."""
        parts = []
        for each in updates:
            self._chunks.see(0, each.output)
            if not self._has_begun:
                self._has_begun = True
                parts += [self._first_chunk(index) for index in range(self._n)]
                if self._echo:
                    parts += [self._echo_chunk(index) for index in range(self._n)]
            parts.append(self._chunk(each.completion))
        return b"".join(parts)

    def content(self, one: CompletionOutput) -> str:
        """The text of a whole reply, without reasoning and calls."""
        return self._reply.message(one).content

    def choice(self, one: CompletionOutput, index: int) -> ChatChoice:
        """A choice of a whole reply."""
        parsed = self._reply.message(one)
        parsed.content = self._echo + parsed.content
        return ChatChoice(
            index=index,
            message=reply_message(self._role, parsed, self._reply.plan),
            **self._end_of(one),
        )

    def reasoning_tokens(self) -> int | None:
        """Reasoning tokens of all choices written so far; None for a model that does not reason."""
        return added(self._reply.reasoning_tokens(index) for index in range(self._n))

    def _end_of(self, one: CompletionOutput) -> dict[str, Any]:
        fields = super()._end_of(one)
        fields["finish_reason"] = self._reply.finish_reason(one)
        fields["logprobs"] = None if one.logprobs is None else self._logprobs.chat(one)
        return fields

    def _first_chunk(self, index: int) -> bytes:
        """The first chunk of a choice: the role, and the fields that are sent once."""
        once: dict[str, Any] = {}
        if self._wants_ids:
            once["prompt_token_ids"] = JsonList(self._prompt.token_ids).as_field()
        if self._options.has_prompt_text and self._prompt.text is not None:
            once["prompt_text"] = self._prompt.text
        delta = Delta(role=self._role, content="")
        return self._chunks.chunk(0, ChatChunkChoice(index=index, delta=delta), **once)

    def _echo_chunk(self, index: int) -> bytes:
        delta = Delta(content=self._echo)
        return self._chunks.chunk(0, ChatChunkChoice(index=index, delta=delta))

    def _chunk(self, one: CompletionOutput) -> bytes:
        """The chunk for a choice's new output. Empty if its text is held back until its meaning is
        known, and there is nothing else to report."""
        delta = delta_of(self._reply.events(one), self._reply.plan)
        reasoning_tokens = self._reply.reasoning_tokens(one.index)
        self._chunks.count(one.index, len(one.token_ids), reasoning_tokens)
        has_logprobs = self._options.num_top is not None
        has_more = one.finish_reason is not None or self._wants_ids or has_logprobs
        if delta is None:
            if not has_more and not self._reply.plan.is_plain:
                return b""
            delta = Delta(content="" if self._reply.plan.is_plain else None)
        choice = ChatChunkChoice(index=one.index, delta=delta, **self._end_of(one))
        return self._chunks.chunk(0, choice)


def reply_message(role: str, message: Message, plan: ReplyPlan) -> ReplyMessage:
    """A whole message. Its content is null if the reply consists of something else; empty, as in
    vLLM, if the request required a call."""
    calls = [
        CalledFunction(name=call.name, arguments=call.arguments) for call in message.tool_calls
    ]
    is_demanded = plan.tools.rules.choice == "required" and not plan.tools.is_legacy
    is_null = bool(calls or message.reasoning) and not is_demanded
    made = ReplyMessage(
        role=role,
        content=None if is_null and not message.content else message.content,
        reasoning=message.reasoning or None,
    )
    if plan.reasoning_field == "reasoning_content":
        made.reasoning_content, made.reasoning = made.reasoning, msgspec.UNSET
    if calls and plan.tools.is_legacy:
        made.function_call = calls[0]
    elif calls:
        ids = [call.id or "" for call in message.tool_calls]
        pairs = zip(ids, calls, strict=True)
        made.tool_calls = [ReplyToolCall(id=call_id, function=call) for call_id, call in pairs]
    return made


def delta_of(events: Iterable[Event], plan: ReplyPlan) -> Delta | None:
    """The delta of some events, with one entry per call; None if there is nothing to send."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, DeltaToolCall] = {}
    for event in events:
        if isinstance(event, Content):
            content.append(event.text)
        elif isinstance(event, Reasoning):
            reasoning.append(event.text)
        elif isinstance(event, CallBegins):
            function = DeltaFunction(name=event.name, arguments="")
            calls[event.index] = DeltaToolCall(
                index=event.index, id=event.id, type="function", function=function
            )
        elif isinstance(event, Arguments):
            call = calls.setdefault(
                event.index, DeltaToolCall(index=event.index, function=DeltaFunction())
            )
            call.function.arguments = (call.function.arguments or "") + event.text
    if not content and not reasoning and not calls:
        return None
    delta = Delta(content="".join(content) if content else None)
    if reasoning:
        setattr(delta, plan.reasoning_field, "".join(reasoning))
    if calls and plan.tools.is_legacy:
        delta.function_call = next(iter(calls.values())).function
    elif calls:
        delta.tool_calls = list(calls.values())
    return delta


def chat_writer(
    asked: AnyRequest, head: ReplyHead, prompts: Sequence[PreparedPrompt]
) -> ChatWriter:
    """Writes the replies in the form of `/v1/chat/completions`."""
    [prompt], model = prompts, head.target.model
    tokenizer, role = model.loaded_engine().tokenizer, model.args.response_role
    return ChatWriter(asked, head, prompt, tokenizer, role)
