"""`ReplyWriter`, the base of the writers of several APIs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.generation.chunks import Chunk, ChunkWriter
from quire.server.generation.logprobs import LogprobsWriter
from quire.server.generation.reply import ReplyHead, Writer
from quire.server.generation.usage import metrics_of, usage_of
from quire.server.json_pieces import JsonList
from quire.server.requests.fields import WholeReplyFields
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.server.requests.prompts import PreparedPrompt
    from quire.server.requests.request import ReplyOptions


Whole = TypeVar("Whole", bound=WholeReplyFields)


class ReplyWriter(Writer, Generic[Chunk]):
    """Shapes the replies to one request, whole or in chunks.

    There is one chunk for each step of a choice, even without text: a client that counts chunks
    counts steps, and a token's log-probabilities come with it.
    """

    def __init__(
        self,
        options: ReplyOptions,
        head: ReplyHead,
        prompts: Sequence[PreparedPrompt],
        tokenizer: Tokenizer | None,
        *,
        num_top: int,
        chunk_kind: type[Chunk],
    ) -> None:
        """`num_top`: log-probabilities of the best tokens at each position."""
        self._options = options
        self._head = head
        self._prompts = prompts
        self._n = options.n
        self._wants_ids = options.has_token_ids
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._chunk_kind = chunk_kind

    @cached_property
    def _chunks(self) -> ChunkWriter[Chunk]:
        """Made for replies that are streamed."""
        return ChunkWriter(self._chunk_kind, self._head)

    @cached_property
    def _logprobs(self) -> LogprobsWriter:
        """Made for replies that have log-probabilities."""
        return LogprobsWriter(self._tokenizer, self._num_top, self._head.tokens_as_ids)

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
        response = self._head.begin(kind, choices=choices.as_field(), usage=usage)
        response.metrics = metrics_of(
            finals[-1].metrics,
            finals[-1].outputs[0].spec_decode_metrics,
            has_timings=self._head.has_metrics,
            num_choices=sum(len(final.outputs) for final in finals),
        )
        response.kv_transfer_params = finals[0].kv_transfer_params if len(finals) == 1 else None
        return response

    def _end_of(self, one: CompletionOutput) -> dict[str, Any]:
        """The fields of a choice that say how it ended, and its token ids."""
        return {
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": JsonList(one.token_ids).as_field() if self._wants_ids else None,
        }
