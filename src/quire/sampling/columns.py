"""`SamplingColumns`: what a backend is told of sampling, an array for each parameter.

A column is declared here and nowhere else: its type, its neutral value, what it may hold, and how
it follows from a request's parameters. The worker keeps and gathers columns, and the backends take
and check them, by this declaration. Legend: L rows of logits of which a token is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.config.records import LogprobsMode
from quire.errors import BackendError
from quire.params import GREEDY_BELOW, SamplingParams
from quire.sampling.masks import TokenMasks

Tokens = NDArray[np.int32]
_LEAST_PENALTY, _MOST_PENALTY = 1e-30, 1e30
"""Of repetition: beyond these a logit overflows float32, and the only token that is allowed could
not be chosen any more."""
LOGPROBS_KINDS: dict[LogprobsMode, int] = {
    "raw_logprobs": 0,
    "raw_logits": 1,
    "processed_logprobs": 2,
    "processed_logits": 3,
}
"""What `logprobs_kind` says of a row."""


@dataclass(frozen=True, slots=True)
class Column:
    """One number for each row."""

    dtype: type[np.generic]
    value: Callable[[SamplingParams, int], float] | None = None
    """Of a request with these parameters, for a vocabulary of so many tokens. None: it depends on
    the step."""
    neutral: float | None = None
    """Changes nothing; where every row has it, the column may be left out. None: there is no such
    value."""
    lowest: float | None = None


@dataclass(slots=True)
class TokenLists:
    """Some tokens of each row: those of row l are ids[starts[l] : starts[l + 1]]."""

    starts: NDArray[np.int32]
    """[L + 1]"""
    ids: NDArray[np.int32]
    """[starts[-1]]"""
    values: NDArray[np.float32] | None = None
    """As long; a number for each, where the list has numbers."""

    @classmethod
    def join(cls, rows: Sequence[tuple[Tokens, NDArray[np.float32] | None] | None]) -> TokenLists:
        """From the ids and numbers of each row; None: a row without any."""
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([0 if row is None else len(row[0]) for row in rows], out=starts[1:])
        ids = [row[0] for row in rows if row is not None]
        values = [row[1] for row in rows if row is not None and row[1] is not None]
        return cls(
            starts,
            np.concatenate(ids) if ids else np.empty(0, np.int32),
            np.concatenate(values) if values else None,
        )

    def take(self, rows: NDArray[np.int32]) -> TokenLists:
        """The lists of these rows, in their order."""
        places = [self.of_row(row) for row in rows.tolist()]
        return TokenLists.join(
            [
                (self.ids[place], None if self.values is None else self.values[place])
                for place in places
            ]
        )

    def of_row(self, row: int) -> slice:
        """Where the tokens of a row are."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def check(self, name: str, num_rows: int, *, has_values: bool) -> None:
        """Raises BackendError unless the arrays fit together and have `num_rows` rows."""
        if len(self.starts) != num_rows + 1 or self.starts.dtype != np.int32:
            raise _misshapen(f"{name}.starts", self.starts, np.int32, num_rows + 1)
        lengths = {len(self.ids), len(self.ids if self.values is None else self.values)}
        if lengths != {int(self.starts[-1])} or has_values != (self.values is not None):
            raise BackendError(f"sampling column {name} is not as long as its starts say")
        number = np.dtype(np.float32) if self.values is None else self.values.dtype
        if self.ids.dtype != np.int32 or number != np.float32:
            raise BackendError(f"sampling column {name} is {self.ids.dtype} with {number}")


def _temperature(params: SamplingParams, _vocab_size: int) -> float:
    return 0.0 if params.temperature < GREEDY_BELOW else params.temperature


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    return min(max(params.top_k, 0), vocab_size)


def _top_p(params: SamplingParams, _vocab_size: int) -> float:
    return params.top_p


def _min_p(params: SamplingParams, _vocab_size: int) -> float:
    return params.min_p


def _seed(params: SamplingParams, _vocab_size: int) -> int:
    if params.seed is None:
        raise ValueError("a request that samples has no seed")
    return params.seed % 2**64


def _repetition_penalty(params: SamplingParams, _vocab_size: int) -> float:
    return min(max(params.repetition_penalty, _LEAST_PENALTY), _MOST_PENALTY)


def _frequency_penalty(params: SamplingParams, _vocab_size: int) -> float:
    return params.frequency_penalty


def _presence_penalty(params: SamplingParams, _vocab_size: int) -> float:
    return params.presence_penalty


def _num_logprobs(params: SamplingParams, vocab_size: int) -> int:
    wanted = params.num_logprobs
    if wanted is None:
        return -1
    return wanted if 0 <= wanted <= vocab_size else vocab_size


@dataclass(slots=True, kw_only=True)
class SamplingColumns:
    """How to choose a token from each of the L logits rows; `None` columns mean the neutral value.

    The semantics (order, ties, random numbers) are those of `quire.sampling.reference`.
    """

    temperature: NDArray[np.float32] = field(
        metadata={"column": Column(np.float32, _temperature, lowest=0)}
    )
    """[L]; 0 is greedy (the lowest id among equals)."""
    top_k: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, _top_k, neutral=0, lowest=0)}
    )
    """[L]; 0 is off."""
    top_p: NDArray[np.float32] | None = field(
        default=None, metadata={"column": Column(np.float32, _top_p, neutral=1, lowest=0)}
    )
    """[L]; 1 is off."""
    min_p: NDArray[np.float32] | None = field(
        default=None, metadata={"column": Column(np.float32, _min_p, neutral=0, lowest=0)}
    )
    """[L]; 0 is off."""
    seeds: NDArray[np.uint64] = field(metadata={"column": Column(np.uint64, _seed)})
    """[L]; the random number is a function of (seed, counter) alone."""
    counters: NDArray[np.uint64] = field(metadata={"column": Column(np.uint64)})
    """[L]; the absolute position of the token being chosen."""
    num_logprobs: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, _num_logprobs, neutral=-1, lowest=-1)}
    )
    """[L]; how many of the best tokens to report for the row; -1: not even the chosen one's."""
    logprobs_kind: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, neutral=0, lowest=0)}
    )
    """[L]; what is reported, of `LOGPROBS_KINDS`. Processed: of the logits after all that is done
    to them before a token is chosen; of the raw ones where `chosen` has a token."""
    repetition_penalty: NDArray[np.float32] | None = field(
        default=None,
        metadata={"column": Column(np.float32, _repetition_penalty, neutral=1, lowest=0)},
    )
    """[L]; divides the positive logits of `seen` tokens and multiplies the others; 1 is off."""
    frequency_penalty: NDArray[np.float32] | None = field(
        default=None,
        metadata={"column": Column(np.float32, _frequency_penalty, neutral=0, lowest=-2)},
    )
    """[L]; is taken off the logit of a `seen` token as often as it was generated; 0 is off."""
    presence_penalty: NDArray[np.float32] | None = field(
        default=None,
        metadata={"column": Column(np.float32, _presence_penalty, neutral=0, lowest=-2)},
    )
    """[L]; is taken off the logit of a `seen` token once, if it was generated; 0 is off."""
    chosen: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, neutral=-1, lowest=-1)}
    )
    """[L]; a token that is the row's whatever the logits, as it is chosen already: a prompt's. -1:
    the row's token is to be chosen."""
    allowed: TokenLists | None = field(default=None, metadata={"has_values": False})
    """All other tokens are forbidden. A row without any: all are allowed."""
    bias: TokenLists | None = field(default=None, metadata={"has_values": True})
    """What is added to the logits of these tokens; -inf forbids one. A token may stand twice."""
    seen: TokenLists | None = field(default=None, metadata={"has_values": True})
    """Each token that the row's request has, once, and how often it was generated; 0: it is only in
    the prompt."""
    reported: TokenLists | None = field(default=None, metadata={"has_values": False})
    """Tokens to report in this order, instead of the best; the row's `num_logprobs` counts them."""
    mask: TokenMasks | None = None
    """Tokens that are forbidden before all else, also in what is reported of raw logits."""

    def given(self, num_rows: int) -> dict[str, NDArray[Any]]:
        """The arrays that are not left out, by name. Raises BackendError unless they are whole, of
        the declared types, and have `num_rows` rows."""
        found: dict[str, NDArray[Any]] = {}
        for name, column in COLUMNS.items():
            array = getattr(self, name)
            if array is not None:
                if len(array) != num_rows or array.dtype.type is not column.dtype:
                    raise _misshapen(name, array, column.dtype, num_rows)
                found[name] = array
        return found

    def given_lists(self, num_rows: int) -> dict[str, TokenLists]:
        """The lists that are not left out. Raises BackendError as `given` does."""
        found: dict[str, TokenLists] = {}
        for name, has_values in TOKEN_LISTS.items():
            lists = getattr(self, name)
            if lists is not None:
                lists.check(name, num_rows, has_values=has_values)
                found[name] = lists
        return found

    def take(self, rows: NDArray[np.int32]) -> SamplingColumns:
        """The columns of these rows, in their order."""
        taken: dict[str, Any] = {}
        for one in fields(self):
            part = getattr(self, one.name)
            if part is not None:
                taken[one.name] = part.take(rows)
        return SamplingColumns(**taken)

    def check(self, num_rows: int) -> None:
        """Raises BackendError for what `given` refuses, and for numbers that mean nothing."""
        self.given_lists(num_rows)
        for name, array in self.given(num_rows).items():
            lowest = COLUMNS[name].lowest
            if lowest is not None and num_rows and not array.min() >= lowest:
                raise BackendError(f"sampling column {name} holds {array.min()}, below {lowest}")


COLUMNS: dict[str, Column] = {
    one.name: one.metadata["column"] for one in fields(SamplingColumns) if "column" in one.metadata
}
"""Every column with one number for each row, by name."""
TOKEN_LISTS: dict[str, bool] = {
    one.name: one.metadata["has_values"]
    for one in fields(SamplingColumns)
    if "has_values" in one.metadata
}
"""Every list of tokens of each row, by name: whether each token has a number."""


def _misshapen(
    name: str, array: NDArray[Any], dtype: type[np.generic], num_rows: int
) -> BackendError:
    if len(array) != num_rows:
        return BackendError(f"sampling column {name} has {len(array)} rows, not {num_rows}")
    return BackendError(f"sampling column {name} is {array.dtype}, not {dtype.__name__}")
