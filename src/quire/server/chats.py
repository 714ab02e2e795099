"""`/v1/chat/completions`: replies and streams, out of a `Generation`'s outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.event_stream import event
from quire.server.generation import Generation
from quire.server.logprobs import LogprobsWriter
from quire.server.prompts import PreparedPrompt
from quire.server.reply import ReplyHead
from quire.server.schema.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatRequest,
    ChatResponse,
    Delta,
    ReplyMessage,
)
from quire.server.usage import UsageCounter, timings, usage_of
from quire.tokenizer import Tokenizer


class ChatWriter:
    """Shapes one chat request's replies, whole or in chunks."""

    def __init__(
        self,
        request: ChatRequest,
        head: ReplyHead,
        prompt: PreparedPrompt,
        tokenizer: Tokenizer | None,
        role: str,
    ) -> None:
        self._request = request
        self._head = head
        self._prompt = prompt
        self._role = _role_of_reply(request, role)
        self._echo = _echo_text(request, self._role)
        as_ids = request.return_tokens_as_token_ids is True
        self._logprobs = LogprobsWriter(tokenizer, request.top_logprobs or 0, as_ids)

    def whole(self, final: RequestOutput) -> ChatResponse:
        """The reply to a request that does not stream."""
        request = self._request
        response = ChatResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(one) for one in final.outputs],
            system_fingerprint=self._head.fingerprint,
            usage=usage_of([final]),
        )
        if request.return_token_ids:
            response.prompt_token_ids = self._prompt.token_ids
        if request.return_prompt_text:
            response.prompt_text = self._prompt.text
        if self._head.has_metrics:
            response.metrics = timings(final.metrics)
        return response

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The chunks of a streamed reply, those of one step together."""
        counter, started = UsageCounter(), set[int]()
        n = self._request.n or 1
        async for batch in generation.outputs():
            parts = []
            for _, output in batch:
                counter.add(0, output, n)
                for one in output.outputs:
                    if one.index not in started:
                        started.add(one.index)
                        parts.append(self._first_chunk(one.index, counter))
                    if one.text or one.finish_reason or one.logprobs or self._wants_ids:
                        parts.append(self._chunk(one, counter))
            if parts:
                yield b"".join(parts)
        if self._head.include_usage or self._head.has_metrics:
            yield self._last_chunk(counter)

    @property
    def _wants_ids(self) -> bool:
        return self._request.return_token_ids is True

    def _choice(self, one: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=one.index,
            message=ReplyMessage(role=self._role, content=self._echo + one.text),
            logprobs=self._logprobs.chat(one),
            finish_reason=one.finish_reason,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=list(one.token_ids) if self._wants_ids else None,
        )

    def _first_chunk(self, index: int, counter: UsageCounter) -> bytes:
        """The role, and what is told once."""
        chunk = self._empty_chunk()
        delta = Delta(role=self._role, content=self._echo)
        chunk.choices.append(ChatChunkChoice(index=index, delta=delta))
        if self._wants_ids:
            chunk.prompt_token_ids = self._prompt.token_ids
        if self._request.return_prompt_text and self._prompt.text is not None:
            chunk.prompt_text = self._prompt.text
        return self._encode(chunk, index, counter)

    def _chunk(self, one: CompletionOutput, counter: UsageCounter) -> bytes:
        chunk = self._empty_chunk()
        chunk.choices.append(
            ChatChunkChoice(
                index=one.index,
                delta=Delta(content=one.text),
                logprobs=self._logprobs.chat(one),
                finish_reason=one.finish_reason,  # type: ignore[arg-type]
                stop_reason=one.stop_reason,
                token_ids=list(one.token_ids) if self._wants_ids else None,
            )
        )
        return self._encode(chunk, one.index, counter)

    def _encode(self, chunk: ChatChunk, index: int, counter: UsageCounter) -> bytes:
        if self._head.continuous_usage:
            chunk.usage = counter.of_choice(0, index)
        elif self._head.include_usage:
            chunk.usage = None
        return event(msgspec.json.encode(chunk))

    def _last_chunk(self, counter: UsageCounter) -> bytes:
        chunk = self._empty_chunk()
        chunk.usage = counter.total() if self._head.include_usage else None
        if self._head.has_metrics:
            chunk.metrics = timings(counter.stats)
        return event(msgspec.json.encode(chunk))

    def _empty_chunk(self) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[],
            system_fingerprint=head.fingerprint,
        )


def _role_of_reply(request: ChatRequest, role: str) -> str:
    """The model's role, or that of a last message which it goes on with."""
    return role if request.add_generation_prompt is not False else request.messages[-1].role


def _echo_text(request: ChatRequest, role: str) -> str:
    last = request.messages[-1]
    if not request.echo or last.role != role:
        return ""
    if isinstance(last.content, list):
        return "\n".join(part.text or "" for part in last.content)
    return last.content or ""
