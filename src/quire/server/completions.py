"""`/v1/completions`: replies and streams, out of a `Generation`'s outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.event_stream import event
from quire.server.generation import Generation
from quire.server.logprobs import LogprobsWriter
from quire.server.prompts import PreparedPrompt
from quire.server.reply import ReplyHead
from quire.server.schema.completion import (
    CompletionChoice,
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from quire.server.usage import UsageCounter, make_usage, timings, usage_of
from quire.tokenizer import Tokenizer


class CompletionWriter:
    """Shapes one completion request's replies, whole or in chunks."""

    def __init__(
        self,
        request: CompletionRequest,
        head: ReplyHead,
        prompts: Sequence[PreparedPrompt],
        tokenizer: Tokenizer | None,
    ) -> None:
        self._request = request
        self._head = head
        self._n = request.n or 1
        as_ids = request.return_tokens_as_token_ids is True
        self._logprobs = LogprobsWriter(tokenizer, request.logprobs or 0, as_ids)
        self._echoes = self._echo_texts(prompts, tokenizer) if request.echo else None
        self._prompts = prompts

    def whole(self, finals: Sequence[RequestOutput]) -> CompletionResponse:
        """The reply to a request that does not stream."""
        choices = []
        for prompt_index, final in enumerate(finals):
            for one in final.outputs:
                choice = self._choice(prompt_index, one)
                choice.text = self._echo(prompt_index) + choice.text
                choices.append(choice)
        response = CompletionResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            system_fingerprint=self._head.fingerprint,
            usage=usage_of(finals),
        )
        if self._head.has_metrics:
            response.metrics = timings(finals[-1].metrics)
        return response

    def prompts_only(self) -> CompletionResponse:
        """The reply to `echo` with `max_tokens` 0: the prompts come back, nothing runs."""
        num_tokens = sum(len(prompt.token_ids) for prompt in self._prompts)
        choices = [
            CompletionChoice(
                index=index * self._n + i, text=self._echo(index), finish_reason="length"
            )
            for index in range(len(self._prompts))
            for i in range(self._n)
        ]
        return CompletionResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            system_fingerprint=self._head.fingerprint,
            usage=make_usage(num_tokens, 0, 0),
        )

    async def stream_prompts_only(self) -> AsyncIterator[bytes]:
        """The same as chunks."""
        whole = self.prompts_only()
        for choice in whole.choices:
            chunk = self._empty_chunk()
            chunk.choices.append(choice)
            yield event(msgspec.json.encode(chunk))
        if self._head.include_usage:
            chunk = self._empty_chunk()
            chunk.usage = whole.usage
            yield event(msgspec.json.encode(chunk))

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The chunks of a streamed reply, those of one step together."""
        counter, started = UsageCounter(), set[int]()
        async for batch in generation.outputs():
            parts = []
            for prompt_index, output in batch:
                counter.add(prompt_index, output, self._n)
                for one in output.outputs:
                    choice = self._choice(prompt_index, one)
                    if choice.index not in started:
                        started.add(choice.index)
                        choice.text = self._echo(prompt_index) + choice.text
                        if self._request.return_token_ids:
                            choice.prompt_token_ids = output.prompt_token_ids
                    if _tells_something(choice):
                        parts.append(self._chunk(choice, prompt_index, counter))
            if parts:
                yield b"".join(parts)
        if self._head.include_usage or self._head.has_metrics:
            yield self._last_chunk(counter)

    def _choice(self, prompt_index: int, one: CompletionOutput) -> CompletionChoice:
        index = prompt_index * self._n + one.index
        wants_ids = self._request.return_token_ids
        return CompletionChoice(
            index=index,
            text=one.text,
            logprobs=self._logprobs.completion(index, one),
            finish_reason=one.finish_reason,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=list(one.token_ids) if wants_ids else None,
            prompt_token_ids=(
                self._prompts[prompt_index].token_ids
                if wants_ids and not self._request.stream
                else None
            ),
        )

    def _chunk(self, choice: CompletionChoice, prompt_index: int, counter: UsageCounter) -> bytes:
        chunk = self._empty_chunk()
        chunk.choices.append(choice)
        if self._head.continuous_usage:
            chunk.usage = counter.of_choice(prompt_index, choice.index)
        elif self._head.include_usage:
            chunk.usage = None
        return event(msgspec.json.encode(chunk))

    def _last_chunk(self, counter: UsageCounter) -> bytes:
        chunk = self._empty_chunk()
        chunk.usage = counter.total() if self._head.include_usage else None
        if self._head.has_metrics:
            chunk.metrics = timings(counter.stats)
        return event(msgspec.json.encode(chunk))

    def _empty_chunk(self) -> CompletionChunk:
        head = self._head
        return CompletionChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[],
            system_fingerprint=head.fingerprint,
        )

    def _echo(self, prompt_index: int) -> str:
        return self._echoes[prompt_index] if self._echoes is not None else ""

    @staticmethod
    def _echo_texts(prompts: Sequence[PreparedPrompt], tokenizer: Tokenizer | None) -> list[str]:
        texts = []
        for prompt in prompts:
            if prompt.text is not None:
                texts.append(prompt.text)
            else:
                texts.append(tokenizer.decode(prompt.token_ids) if tokenizer is not None else "")
        return texts


def _tells_something(choice: CompletionChoice) -> bool:
    return bool(
        choice.text or choice.finish_reason or choice.logprobs or choice.token_ids is not None
    )
