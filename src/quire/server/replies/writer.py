"""`ReplyWriter`: what writing a reply to a completion and to a chat have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quire.outputs import CompletionOutput, RequestOutput
from quire.server.replies.chunks import Chunk, ChunkWriter
from quire.server.replies.head import ReplyHead
from quire.server.replies.json_pieces import JsonList, JsonPieces
from quire.server.replies.logprobs import LogprobsWriter
from quire.server.replies.portions import Update, written
from quire.server.replies.usage import timings, usage_of
from quire.server.schema.chat import ChatRequest
from quire.server.schema.common import WholeReplyFields
from quire.server.schema.completion import CompletionRequest
from quire.server.work_pool import WorkPool
from quire.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.server.requests.generation import Generation
    from quire.server.requests.prompts import PreparedPrompt

Asked = TypeVar("Asked", ChatRequest, CompletionRequest)
Whole = TypeVar("Whole", bound=WholeReplyFields)


class ReplyWriter(ABC, Generic[Asked, Chunk]):
    """Shapes the replies to one request, whole or in chunks."""

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

    @abstractmethod
    def whole_size(self, finals: Sequence[RequestOutput]) -> int:
        """How much there is to write of a whole reply, in the pool's units."""

    @abstractmethod
    def whole(self, finals: Sequence[RequestOutput]) -> list[bytes]:
        """The reply to a request that does not stream, in pieces."""

    async def stream(self, generation: Generation, pool: WorkPool) -> AsyncIterator[bytes]:
        """The chunks of a streamed reply, those of one step together.

        One for whatever a step brought a choice, be it text or not yet: who counts chunks counts
        steps, and a token's log-probabilities come with it.
        """
        async for data in written(generation, self, pool):
            yield data
        if last := self._chunks.last():
            yield last

    @abstractmethod
    def size(self, update: Update) -> int:
        """How much there is to write of one choice, in the pool's units."""

    @abstractmethod
    def events(self, updates: Sequence[Update]) -> bytes:
        """The chunks that tell of these."""

    def reasoning_tokens(self) -> int | None:
        """Tokens of reasoning in what was written; None where nothing is told as such."""
        return None

    def _response(
        self, kind: type[Whole], choices: JsonList, finals: Sequence[RequestOutput]
    ) -> Whole:
        """A whole reply with these choices."""
        usage = usage_of(finals, self.reasoning_tokens())
        response = self._head.begin(kind, choices=choices.encoded(), usage=usage)
        if self._head.has_metrics:
            response.metrics = timings(finals[-1].metrics)
        return response

    def _end_of(self, one: CompletionOutput) -> dict[str, Any]:
        """The fields of a choice that say how it ended, and its token ids."""
        return {
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": self._ids(one.token_ids) if self._wants_ids else None,
        }

    def _ids(self, token_ids: Sequence[int]) -> Any:
        """A list of token ids, as a field of the struct that is encoded next."""
        return self._pieces.new_list(token_ids).encoded()
