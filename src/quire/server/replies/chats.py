"""`/v1/chat/completions`: replies and streams, out of a `Generation`'s outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.replies.chunks import ChunkWriter
from quire.server.replies.head import ReplyHead
from quire.server.replies.json_pieces import JsonPieces
from quire.server.replies.logprobs import LogprobsWriter, prompt_logprobs
from quire.server.replies.portions import News, size_of, size_of_whole, written
from quire.server.replies.usage import timings, usage_of
from quire.server.requests.generation import Generation
from quire.server.requests.prompts import PreparedPrompt
from quire.server.schema.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatRequest,
    ChatResponse,
    Delta,
    ReplyMessage,
)
from quire.server.work_pool import WorkPool, check_wanted
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
        self._pieces = JsonPieces()
        self._logprobs = LogprobsWriter(self._pieces, tokenizer, request.top_logprobs or 0, as_ids)
        self._chunks = ChunkWriter(ChatChunk, head, self._pieces)
        self._has_begun = False

    def whole_size(self, final: RequestOutput) -> int:
        """For the pool."""
        return size_of_whole([final], 1 if self._wants_ids else 0)

    def whole(self, final: RequestOutput) -> list[bytes]:
        """The reply to a request that does not stream, in pieces."""
        request, pieces = self._request, self._pieces
        choices = pieces.new_list()
        for one in final.outputs:
            choices.add_pieces(pieces.encode(self._choice(one)))
            check_wanted()
        response = self._head.begin(
            ChatResponse, choices=choices.encoded(), usage=usage_of([final])
        )
        if isinstance(final.prompt_logprobs, FlatLogprobs):
            response.prompt_logprobs = prompt_logprobs(final.prompt_logprobs, pieces).encoded()
        if request.return_token_ids:
            response.prompt_token_ids = self._pieces.new_list(self._prompt.token_ids).encoded()
        if request.return_prompt_text:
            response.prompt_text = self._prompt.text
        if self._head.has_metrics:
            response.metrics = timings(final.metrics)
        return pieces.encode(response)

    async def stream(self, generation: Generation, pool: WorkPool) -> AsyncIterator[bytes]:
        """The chunks of a streamed reply, those of one step together.

        One for whatever a step brought a choice, be it text or not yet: who counts chunks counts
        steps, and a token's log-probabilities come with it.
        """
        async for data in written(generation, self, pool):
            yield data
        if last := self._chunks.last():
            yield last

    def size(self, news: News) -> int:
        """How much there is to write of one choice, in the pool's units."""
        size = size_of(news.completion)
        if not self._has_begun:
            tells_of_prompt = self._wants_ids or self._echo or self._request.return_prompt_text
            num_tokens = len(self._prompt.token_ids) if tells_of_prompt else 0
            size += (self._request.n or 1) * (16 + num_tokens)
        return size

    def events(self, news: Sequence[News]) -> bytes:
        """The chunks that tell of these; before the first, one of each choice's role."""
        parts = []
        for each in news:
            self._chunks.see(0, each.output)
            if not self._has_begun:
                self._has_begun = True
                parts += [self._first_chunk(index) for index in range(self._request.n or 1)]
            choice = self._chunk_choice(each.completion)
            parts.append(self._chunks.chunk(0, choice, len(each.completion.token_ids)))
        return b"".join(parts)

    @property
    def _wants_ids(self) -> bool:
        return self._request.return_token_ids is True

    def _ids(self, one: CompletionOutput) -> Any:
        return self._pieces.new_list(one.token_ids).encoded() if self._wants_ids else None

    def _choice(self, one: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=one.index,
            message=ReplyMessage(role=self._role, content=self._echo + one.text),
            logprobs=self._logprobs.chat(one),
            finish_reason=one.finish_reason,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=self._ids(one),
        )

    def _first_chunk(self, index: int) -> bytes:
        """The role, and what is told once."""
        once: dict[str, Any] = {}
        if self._wants_ids:
            once["prompt_token_ids"] = self._pieces.new_list(self._prompt.token_ids).encoded()
        if self._request.return_prompt_text and self._prompt.text is not None:
            once["prompt_text"] = self._prompt.text
        delta = Delta(role=self._role, content=self._echo)
        return self._chunks.chunk(0, ChatChunkChoice(index=index, delta=delta), 0, **once)

    def _chunk_choice(self, one: CompletionOutput) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=one.index,
            delta=Delta(content=one.text),
            logprobs=self._logprobs.chat(one),
            finish_reason=one.finish_reason,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=self._ids(one),
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
