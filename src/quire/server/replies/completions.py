"""`/v1/completions`: replies and streams, out of a `Generation`'s outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from quire.outputs import CompletionOutput, PromptLogprobs, RequestOutput
from quire.server.replies.chunks import ChunkWriter
from quire.server.replies.head import ReplyHead
from quire.server.replies.logprobs import LogprobsWriter, prompt_logprobs
from quire.server.replies.usage import timings, usage_of
from quire.server.requests.generation import Generation
from quire.server.requests.prompts import PreparedPrompt
from quire.server.requests.sampling import is_echo_alone
from quire.server.schema.completion import (
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
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
        self._is_echo_alone = is_echo_alone(request)
        """The one token that is generated is not shown."""
        self._echoes = self._echo_texts(prompts, tokenizer) if request.echo else None
        self._prompts = prompts

    def whole(self, finals: Sequence[RequestOutput]) -> CompletionResponse:
        """The reply to a request that does not stream."""
        choices = []
        for prompt_index, final in enumerate(finals):
            for one in final.outputs:
                choice = self._choice(prompt_index, one, final.prompt_logprobs, is_first=True)
                if self._request.prompt_logprobs is not None:
                    choice.prompt_logprobs = prompt_logprobs(final.prompt_logprobs)
                if self._request.return_token_ids:
                    choice.prompt_token_ids = self._prompts[prompt_index].token_ids
                choices.append(choice)
        response = self._head.begin(CompletionResponse, choices=choices, usage=usage_of(finals))
        if self._head.has_metrics:
            response.metrics = timings(finals[-1].metrics)
        return response

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The chunks of a streamed reply, those of one step together.

        One for whatever a step brought a choice, be it text or not yet: who counts chunks counts
        steps, and a token's log-probabilities come with it.
        """
        writer = ChunkWriter(CompletionChunk, self._head)
        started = set[int]()
        of_prompts: dict[int, PromptLogprobs] = {}
        async for batch in generation.outputs():
            parts = []
            for prompt_index, output in batch:
                writer.see(prompt_index, output)
                if output.prompt_logprobs is not None:
                    of_prompts[prompt_index] = output.prompt_logprobs
                for one in output.outputs:
                    is_first = prompt_index * self._n + one.index not in started
                    choice = self._choice(prompt_index, one, of_prompts.get(prompt_index), is_first)
                    if is_first and self._request.return_token_ids:
                        choice.prompt_token_ids = output.prompt_token_ids
                    started.add(choice.index)
                    parts.append(writer.chunk(prompt_index, choice, len(one.token_ids)))
            yield b"".join(parts)
        if last := writer.last():
            yield last

    def _choice(
        self,
        prompt_index: int,
        one: CompletionOutput,
        of_prompt: PromptLogprobs | None,
        is_first: bool,
    ) -> CompletionChoice:
        """What is new of a choice; the first time, the echoed prompt and its log-probabilities."""
        index = prompt_index * self._n + one.index
        choice = CompletionChoice(
            index=index,
            text="" if self._is_echo_alone else one.text,
            finish_reason=one.finish_reason,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=list(one.token_ids) if self._request.return_token_ids else None,
        )
        if is_first:
            choice.text = self._echo(prompt_index) + choice.text
        if is_first and self._echoes is not None and of_prompt is not None:
            token_ids = self._prompts[prompt_index].token_ids
            choice.logprobs = self._logprobs.tokens(index, token_ids, of_prompt)
        if not self._is_echo_alone:
            choice.logprobs = _joined(choice.logprobs, self._logprobs.completion(index, one))
        return choice

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


def _joined(
    first: CompletionLogprobs | None, then: CompletionLogprobs | None
) -> CompletionLogprobs | None:
    if first is None or then is None:
        return first or then
    return CompletionLogprobs(
        text_offset=first.text_offset + then.text_offset,
        token_logprobs=first.token_logprobs + then.token_logprobs,
        tokens=first.tokens + then.tokens,
        top_logprobs=first.top_logprobs + then.top_logprobs,
    )
