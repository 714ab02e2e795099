"""The log-probabilities of the tokens of a request, position by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.outputs import FlatLogprobs, Logprob, LogprobsOnePosition
from quire.params import SamplingParams
from quire.protocol import TokenLogprobs
from quire.tokenizer import Tokenizer
from quire.tokenizer.vocabulary import MAX_TOKENS_BEFORE


class Positions:
    """The log-probabilities of a request's tokens, position by position, in the form that
    `SamplingParams.flat_logprobs` selects."""

    __slots__ = ("_before", "_decode", "entries")

    def __init__(
        self, tokenizer: Tokenizer | None, params: SamplingParams, before: Sequence[int] = ()
    ) -> None:
        """`before`: tokens before the first one that has log-probabilities."""
        has_text = tokenizer is not None and params.detokenize
        self._decode = tokenizer.text_after if tokenizer is not None and has_text else None
        self._before = list(before)
        """The last tokens, on which the text of the next one may depend."""
        self.entries: list[LogprobsOnePosition | None] | FlatLogprobs = (
            FlatLogprobs(self._decode, before) if params.flat_logprobs else []
        )
        """The entries of all positions so far."""

    def add_nothing(self) -> None:
        """Add a position without log-probabilities: the first token of a prompt."""
        if isinstance(self.entries, FlatLogprobs):
            self.entries.append_fast((), (), ())
        else:
            self.entries.append(None)

    def add(self, positions: Iterable[TokenLogprobs]) -> None:
        """Add positions. A sampled token that is also among the best ones is stored once."""
        entries = self.entries
        for found in positions:
            ids, logprobs, ranks = found.token_ids, found.logprobs, found.ranks
            if ids[0] in ids[1:]:
                place = ids.index(ids[0], 1)
                ids, logprobs = _without(ids, place), _without(logprobs, place)
                ranks = _without(ranks, place)
            if isinstance(entries, FlatLogprobs):
                entries.append_fast(ids, logprobs, ranks)
            else:
                entries.append(self._position(ids, logprobs, ranks))
                self._before = [*self._before[1 - MAX_TOKENS_BEFORE :], ids[0]]

    def _position(
        self, ids: list[int], logprobs: list[float], ranks: list[int]
    ) -> LogprobsOnePosition:
        decode, before = self._decode, self._before
        return {
            token_id: Logprob(logprob, rank, decode(token_id, before) if decode else None)
            for token_id, logprob, rank in zip(ids, logprobs, ranks, strict=True)
        }


def _without(values: list, place: int) -> list:  # type: ignore[type-arg]
    return values[:place] + values[place + 1 :]
