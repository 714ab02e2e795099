"""`ReplyWriter`: what writing a reply to a completion and to a chat have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.bodies.json_pieces import JsonList, JsonPieces
from quire.server.generation.replies.logprobs import LogprobsWriter
from quire.server.generation.replies.portions import ReplyHead, Writer
from quire.server.generation.replies.usage import UsageCounter, metrics_of, usage_of
from quire.server.generation.reply_fields import ChunkFields, WholeReplyFields
from quire.server.generation.request_fields import GenerationFields
from quire.server.http.event_stream import event
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.server.generation.prompts import PreparedPrompt

Chunk = TypeVar("Chunk", bound=ChunkFields)


class ChunkWriter(Generic[Chunk]):
    """Encodes chunks, and counts the usage that they report."""

    def __init__(self, kind: type[Chunk], head: ReplyHead, pieces: JsonPieces) -> None:
        self._kind: type[Chunk] = kind
        self._pieces = pieces
        self._head = head
        self._counter = UsageCounter()

    def see(self, prompt_index: int, output: RequestOutput) -> None:
        """Counts the prompt's tokens of an output. Call it before the output's chunks."""
        self._counter.see(prompt_index, output)

    def count(self, choice: int, num_tokens: int, reasoning_tokens: int | None = None) -> None:
        """Counts new tokens of a choice, and its reasoning tokens so far."""
        self._counter.add(choice, num_tokens, reasoning_tokens)

    def chunk(self, prompt_index: int, choice: Any, **fields: Any) -> bytes:
        """One choice's update, with the usage so far if that was asked for."""
        chunk = self._head.begin(self._kind, choices=[choice], **fields)
        if self._head.continuous_usage:
            chunk.usage = self._counter.of_choice(prompt_index, choice.index)
        elif self._head.include_usage:
            chunk.usage = None
        return event(b"".join(self._pieces.encode(chunk)))

    def last(self) -> bytes:
        head, counter = self._head, self._counter
        metrics = metrics_of(
            counter.stats,
            counter.drafts,
            has_timings=head.has_metrics,
            num_choices=len(counter.completion_tokens),
        )
        if not head.include_usage and metrics is msgspec.UNSET:
            return b""
        chunk = head.begin(self._kind, choices=[])
        chunk.usage = counter.total() if head.include_usage else None
        chunk.metrics = metrics
        return event(msgspec.json.encode(chunk))


Asked = TypeVar("Asked", bound=GenerationFields)
Whole = TypeVar("Whole", bound=WholeReplyFields)


class ReplyWriter(Writer, Generic[Asked, Chunk]):
    """Shapes the replies to one request, whole or in chunks.

    There is one chunk for each step of a choice, even without text: a client that counts chunks
    counts steps, and a token's log-probabilities come with it.
    """

    def __init__(
        self,
        request: Asked,
        head: ReplyHead,
        prompts: Sequence[PreparedPrompt],
        tokenizer: Tokenizer | None,
        *,
        num_top: int,
        chunk_kind: type[Chunk],
    ) -> None:
        """`num_top`: log-probabilities of the best tokens at each position."""
        self._request: Asked = request
        self._head = head
        self._prompts = prompts
        self._n = request.n or 1
        self._wants_ids = request.return_token_ids is True
        self._pieces = JsonPieces()
        self._logprobs = LogprobsWriter(self._pieces, tokenizer, num_top, head.tokens_as_ids)
        self._chunks: ChunkWriter[Chunk] = ChunkWriter(chunk_kind, head, self._pieces)

    def last(self) -> bytes:
        """The last chunk, with usage and timings; empty if the request does not ask for it."""
        return self._chunks.last()

    def reasoning_tokens(self) -> int | None:
        """Reasoning tokens of the written reply; None for a model that does not reason."""
        return None

    def _response(
        self, kind: type[Whole], choices: JsonList, finals: Sequence[RequestOutput]
    ) -> Whole:
        usage = usage_of(finals, self.reasoning_tokens())
        response = self._head.begin(kind, choices=choices.encoded(), usage=usage)
        response.metrics = metrics_of(
            finals[-1].metrics,
            finals[-1].outputs[0].spec_decode_metrics,
            has_timings=self._head.has_metrics,
            num_choices=sum(len(final.outputs) for final in finals),
        )
        return response

    def _end_of(self, one: CompletionOutput) -> dict[str, Any]:
        """The fields of a choice that say how it ended, and its token ids."""
        return {
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": self._ids(one.token_ids) if self._wants_ids else None,
        }

    def _ids(self, token_ids: Sequence[int]) -> Any:
        return self._pieces.new_list(token_ids).encoded()
