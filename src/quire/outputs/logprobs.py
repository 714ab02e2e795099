"""Log-probabilities in the form for users: a dict per position, or flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, overload


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position."""

    logprob: float
    rank: int | None = None
    """Rank in the vocabulary; 1 is the most likely token."""
    decoded_token: str | None = None
    """The token as text; None without a tokenizer."""


LogprobsOnePosition = dict[int, Logprob]
_NUM_BEFORE = 4
"""Number of previous tokens on which the text of a token may depend."""


class FlatLogprobs(MutableSequence["LogprobsOnePosition | None"]):
    """Log-probabilities of successive positions in flat arrays, 16 bytes per entry.

    Behaves like a list of dicts that supports appending; each access creates a new dict. Enabled by
    `SamplingParams.flat_logprobs`: a million `Logprob` objects take 200 MB and slow down every full
    garbage collection.
    """

    __slots__ = ("_before", "_decode", "_ends", "_ids", "_lists", "_ranks", "_texts", "_values")

    def __init__(
        self, decode: Callable[[int, Sequence[int]], str] | None = None, before: Sequence[int] = ()
    ) -> None:
        """`decode` returns the text of a token after others; None: tokens have no text, unless they
        are appended with one. `before`: the last tokens before the first one that has
        log-probabilities."""
        self._ends = array("q")
        """The end index of each position in the arrays below."""
        self._ids = array("i")
        self._values = array("d")
        self._ranks = array("i")
        """Ranks; 0 stands for an unknown rank."""
        self._texts: list[str | None] | None = None
        """The texts of the tokens; None: they are computed by `decode`."""
        self._decode = decode
        self._before = list(before)
        self._lists: dict[str, list[Any]] = {}
        """The arrays as lists, cached on first use."""

    @property
    def start_indices(self) -> list[int]:
        """The start index of each position in the lists below."""
        return self._list("start", lambda: [0, *self._ends[:-1]] if self._ends else [])

    @property
    def end_indices(self) -> list[int]:
        """The end index of each position in the lists below."""
        return self._list("end", self._ends.tolist)

    @property
    def token_ids(self) -> list[int]:
        """The tokens of all positions in order."""
        return self._list("ids", self._ids.tolist)

    @property
    def logprobs(self) -> list[float]:
        """The log-probabilities of `token_ids`."""
        return self._list("values", self._values.tolist)

    @property
    def ranks(self) -> list[int | None]:
        """The ranks of `token_ids`."""
        return self._list("ranks", lambda: [rank or None for rank in self._ranks])

    @property
    def decoded_tokens(self) -> list[str | None]:
        """The texts of `token_ids`."""
        return self._list("texts", self._all_texts)

    def append(self, value: LogprobsOnePosition | None) -> None:
        """Add a position. None or an empty dict adds one without log-probabilities."""
        found = value or {}
        entries = found.values()
        texts, self._texts = self._all_texts(), None
        self.append_fast(
            found, [one.logprob for one in entries], [one.rank or 0 for one in entries]
        )
        texts += [one.decoded_token for one in entries]
        self._texts = texts

    def append_fast(
        self, token_ids: Iterable[int], logprobs: Iterable[float], ranks: Iterable[int]
    ) -> None:
        """Add a position. Empty arguments add one without log-probabilities."""
        self._ids.extend(token_ids)
        self._values.extend(logprobs)
        self._ranks.extend(ranks)
        self._ends.append(len(self._ids))
        if self._lists:
            self._lists = {}
        if self._texts is not None:
            self._texts += [None] * (len(self._ids) - len(self._texts))

    def extend(self, values: Iterable[LogprobsOnePosition | None]) -> None:
        """Add positions; those of another `FlatLogprobs` are copied as arrays."""
        if not isinstance(values, FlatLogprobs):
            for value in values:
                self.append(value)
            return
        if self._texts is not None or values._texts is not None:
            self._texts = [*self._all_texts(), *values._all_texts()]
        offset = len(self._ids)
        self._ids += values._ids
        self._values += values._values
        self._ranks += values._ranks
        self._ends.extend([offset + end for end in values._ends])
        self._lists = {}

    def insert(self, index: int, value: LogprobsOnePosition | None) -> NoReturn:
        """Raises TypeError: positions can only be added at the end."""
        del index, value
        raise TypeError("FlatLogprobs can only grow at its end: use append or extend")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError("FlatLogprobs does not support setting positions: use append or extend")

    def __delitem__(self, index: Any) -> NoReturn:
        raise TypeError("FlatLogprobs does not support deleting positions: use a slice")

    def copy(self) -> FlatLogprobs:
        """Return a copy."""
        return self[:]

    def num_entries(self) -> int:
        """Number of log-probabilities of all positions."""
        return len(self._ids)

    def entries(self, position: int) -> tuple[array[int], array[float]]:
        """Copies of the tokens of a position, counted from 0, and of their log-probabilities."""
        span = self._span(position)
        return self._ids[span], self._values[span]

    def first(self, position: int) -> float | None:
        """The first log-probability of a position, counted from 0; None if it has none."""
        span = self._span(position)
        return None if span.start == span.stop else self._values[span.start]

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition: ...

    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...

    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs:
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        if not -len(self) <= index < len(self):
            raise IndexError(f"position {index} is out of range for {len(self)} positions")
        position = index % len(self)
        span = self._span(position)
        ids, texts = self._ids[span], self._texts_of(position, span)
        entries = zip(ids, self._values[span], self._ranks[span], texts, strict=True)
        return {
            token_id: Logprob(logprob, rank or None, text)
            for token_id, logprob, rank, text in entries
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FlatLogprobs({list(self)!r})"

    def _list(self, name: str, make: Callable[[], list[Any]]) -> list[Any]:
        """Return a cached list, because scripts access it again for every index."""
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = make()
        return found

    def _span(self, position: int) -> slice:
        begin = self._ends[position - 1] if position else 0
        return slice(begin, self._ends[position])

    def _all_texts(self) -> list[str | None]:
        if self._texts is not None:
            return self._texts
        places = range(len(self))
        return [text for place in places for text in self._texts_of(place, self._span(place))]

    def _texts_of(self, position: int, span: slice) -> list[str | None]:
        if self._texts is not None:
            return self._texts[span]
        decode = self._decode
        if decode is None:
            return [None] * (span.stop - span.start)
        before = self._tokens_before(position)
        return [decode(token_id, before) for token_id in self._ids[span]]

    def _tokens_before(self, position: int) -> list[int]:
        """The last tokens before a position: the first entry of each earlier position."""
        first = max(0, position - _NUM_BEFORE)
        spans = [self._span(place) for place in range(first, position)]
        ids = [self._ids[span.start] for span in spans if span.start < span.stop]
        return [*self._before, *ids][-_NUM_BEFORE:]

    def _part(self, begin: int, end: int, step: int) -> FlatLogprobs:
        if step == 1 and begin < end:
            part = FlatLogprobs(self._decode, self._tokens_before(begin))
            span = slice(self._span(begin).start, self._ends[end - 1])
            part._ids, part._values = self._ids[span], self._values[span]
            part._ranks = self._ranks[span]
            ends = self._ends[begin:end]
            part._ends = array("q", [place - span.start for place in ends])
            part._texts = None if self._texts is None else self._texts[span]
            return part
        part = FlatLogprobs()
        for position in range(begin, end, step):
            part.append(self[position])
        return part


SampleLogprobs = list[LogprobsOnePosition] | FlatLogprobs
"""One entry per output token: the sampled token first, then the most likely ones in order."""
PromptLogprobs = list["LogprobsOnePosition | None"] | FlatLogprobs
