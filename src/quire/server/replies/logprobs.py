"""Log-probabilities in the two shapes that OpenAI gave them: parallel lists for completions,
a list of positions for chats. JSON has no infinity: minus infinity becomes -9999.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.outputs import CompletionOutput, Logprob, LogprobsOnePosition
from quire.server.schema.chat import ChatLogprobs, PositionLogprobs, TokenLogprob
from quire.server.schema.common import PromptLogprob, PromptLogprobs
from quire.server.schema.completion import CompletionLogprobs
from quire.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0


class LogprobsWriter:
    """Writes one request's log-probabilities; remembers where each choice's text has come to."""

    def __init__(self, tokenizer: Tokenizer | None, num_top: int, as_token_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._as_token_ids = as_token_ids
        self._offsets: dict[int, int] = {}

    def completion(self, choice: int, output: CompletionOutput) -> CompletionLogprobs | None:
        """Those of a completion's new tokens; None if none were asked for."""
        if output.logprobs is None:
            return None
        return self.tokens(choice, output.token_ids, output.logprobs)

    def tokens(
        self, choice: int, token_ids: Sequence[int], positions: Sequence[LogprobsOnePosition | None]
    ) -> CompletionLogprobs:
        """Those of the next tokens of a choice, be they echoed or new; what nothing precedes has
        none."""
        result = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        offset = self._offsets.get(choice, 0)
        for token_id, position in zip(token_ids, positions, strict=False):
            token = self._token(token_id, position[token_id] if position else None)
            result.text_offset.append(offset)
            result.tokens.append(token)
            result.token_logprobs.append(_finite(position[token_id].logprob) if position else None)
            result.top_logprobs.append(self._best(position) if position else None)
            offset += len(token)
        self._offsets[choice] = offset
        return result

    def chat(self, output: CompletionOutput) -> ChatLogprobs | None:
        """Those of a chat reply's new tokens; None if none were asked for."""
        if output.logprobs is None:
            return None
        content = []
        for token_id, position in zip(output.token_ids, output.logprobs, strict=False):
            best = sorted(position.items(), key=_rank)[: self._num_top]
            chosen = self._entry(token_id, position[token_id])
            content.append(
                PositionLogprobs(
                    token=chosen.token,
                    logprob=chosen.logprob,
                    bytes=chosen.bytes,
                    top_logprobs=[self._entry(other, held) for other, held in best],
                )
            )
        return ChatLogprobs(content=content)

    def _best(self, position: LogprobsOnePosition) -> dict[str, float] | None:
        """The best tokens, and the chosen one if it is not among them, as vLLM has it."""
        if not self._num_top:
            return None
        return {self._token(i, held): _finite(held.logprob) for i, held in
                sorted(position.items(), key=_rank)}  # fmt: skip

    def _entry(self, token_id: int, held: Logprob) -> TokenLogprob:
        return TokenLogprob(
            token=self._token(token_id, held),
            logprob=_finite(held.logprob),
            bytes=list(self._bytes(token_id, held)),
        )

    def _token(self, token_id: int, held: Logprob | None) -> str:
        if self._as_token_ids or self._tokenizer is None:
            return f"token_id:{token_id}"
        if held is None or held.decoded_token is None:
            return self._tokenizer.decode([token_id], skip_special_tokens=False)
        return held.decoded_token

    def _bytes(self, token_id: int, held: Logprob) -> bytes:
        """The token's own bytes, which may be no text by themselves."""
        pieces = self._tokenizer.pieces if self._tokenizer is not None else None
        if pieces is not None:
            return bytes(pieces.piece_bytes(token_id))
        return (held.decoded_token or "").encode()


def prompt_logprobs(
    positions: Sequence[LogprobsOnePosition | None] | None,
) -> PromptLogprobs | None:
    """Those of a prompt in vLLM's shape; None if none were asked for."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): PromptLogprob(
                logprob=_finite(held.logprob), rank=held.rank, decoded_token=held.decoded_token
            )
            for token_id, held in position.items()
        }
        for position in positions
    ]


def _rank(item: tuple[int, Logprob]) -> int:
    return item[1].rank or 1 << 30


def _finite(logprob: float) -> float:
    """NaN and minus infinity have no place in JSON."""
    return logprob if logprob >= LEAST_LOGPROB else LEAST_LOGPROB
