"""`SamplingColumns`: the sampling parameters of a batch as arrays, one per parameter, for a
backend.

A column is declared only here: its type, its neutral value, its lowest value, and how it follows
from a request's parameters. The worker stores and gathers columns, and backends check them, by this
declaration. Legend: L is the number of logits rows for which a token is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.config.records import LogprobsMode
from quire.errors import BackendError
from quire.params import GREEDY_BELOW, SamplingParams
from quire.sampling.masks import TokenMasks
from quire.sampling.token_lists import TokenLists, misshapen

_LEAST_PENALTY, _MOST_PENALTY = 1e-30, 1e30
"""Limits of the repetition penalty. Beyond them a logit overflows float32, and even the only
allowed token could not be chosen."""
LOGPROBS_KINDS: dict[LogprobsMode, int] = {
    "raw_logprobs": 0,
    "raw_logits": 1,
    "processed_logprobs": 2,
    "processed_logits": 3,
}
"""Meaning of the values of `logprobs_kind`."""


@dataclass(frozen=True, slots=True)
class Column:
    """Declares an array with one number per row."""

    dtype: type[np.generic]
    value: Callable[[SamplingParams, int], float] | None = None
    """Computes the number from a request's parameters and the vocabulary size. None: it depends on
    the step."""
    neutral: float | None = None
    """Value without an effect. The column may be left out if every row has it. None: there is no
    such value."""
    lowest: float | None = None


def _given(name: str) -> Callable[[SamplingParams, int], float]:
    """The parameter itself."""
    return lambda params, _vocab_size: getattr(params, name)


def _temperature(params: SamplingParams, _vocab_size: int) -> float:
    return 0.0 if params.temperature < GREEDY_BELOW else params.temperature


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    return min(max(params.top_k, 0), vocab_size)


def _seed(params: SamplingParams, _vocab_size: int) -> int:
    if params.seed is None:
        raise ValueError("a request that samples must have a seed")
    return params.seed % 2**64


def _repetition_penalty(params: SamplingParams, _vocab_size: int) -> float:
    return min(max(params.repetition_penalty, _LEAST_PENALTY), _MOST_PENALTY)


def _num_logprobs(params: SamplingParams, vocab_size: int) -> int:
    wanted = params.num_logprobs
    if wanted is None:
        return -1
    return wanted if 0 <= wanted <= vocab_size else vocab_size


def _mass_from(params: SamplingParams, _vocab_size: int) -> int:
    rules = params.timestamps
    return -1 if rules is None or not rules.is_on else rules.first


@dataclass(slots=True, kw_only=True)
class SamplingColumns:
    """Choice of a token from each of the L logits rows; `None` columns mean the neutral value.

    `quire.sampling.reference` specifies the semantics (order, ties, random numbers).
    """

    temperature: NDArray[np.float32] = field(
        metadata={"column": Column(np.float32, _temperature, lowest=0)}
    )
    """[L]; 0 is greedy (the lowest id among equal logits)."""
    top_k: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, _top_k, neutral=0, lowest=0)}
    )
    """[L]; 0 is off."""
    top_p: NDArray[np.float32] | None = field(
        default=None, metadata={"column": Column(np.float32, _given("top_p"), neutral=1, lowest=0)}
    )
    """[L]; 1 is off."""
    min_p: NDArray[np.float32] | None = field(
        default=None, metadata={"column": Column(np.float32, _given("min_p"), neutral=0, lowest=0)}
    )
    """[L]; 0 is off."""
    seeds: NDArray[np.uint64] = field(metadata={"column": Column(np.uint64, _seed)})
    """[L]; the random number depends only on (seed, counter)."""
    counters: NDArray[np.uint64] = field(metadata={"column": Column(np.uint64)})
    """[L]; the absolute position of the token being chosen."""
    num_logprobs: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, _num_logprobs, neutral=-1, lowest=-1)}
    )
    """[L]; how many of the best tokens to report; -1: report nothing, not even the chosen token."""
    logprobs_kind: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, neutral=0, lowest=0)}
    )
    """[L]; a value of `LOGPROBS_KINDS`. Processed values come from the logits after all changes
    before a token is chosen. Rows with a token in `chosen` report raw logits."""
    repetition_penalty: NDArray[np.float32] | None = field(
        default=None,
        metadata={"column": Column(np.float32, _repetition_penalty, neutral=1, lowest=0)},
    )
    """[L]; divides the positive logits of `seen` tokens and multiplies the others; 1 is off."""
    frequency_penalty: NDArray[np.float32] | None = field(
        default=None,
        metadata={"column": Column(np.float32, _given("frequency_penalty"), neutral=0, lowest=-2)},
    )
    """[L]; subtracted from the logit of a `seen` token once per occurrence in the output; 0 is
    off."""
    presence_penalty: NDArray[np.float32] | None = field(
        default=None,
        metadata={"column": Column(np.float32, _given("presence_penalty"), neutral=0, lowest=-2)},
    )
    """[L]; subtracted once from the logit of a `seen` token that occurs in the output; 0 is off."""
    chosen: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, neutral=-1, lowest=-1)}
    )
    """[L]; a token fixed in advance for the row, such as a prompt token; -1: the row's token is
    sampled."""
    mass_from: NDArray[np.int32] | None = field(
        default=None, metadata={"column": Column(np.int32, _mass_from, neutral=-1, lowest=-1)}
    )
    """[L]; a token id m: if the tokens from m on together are more likely than each token before
    m, these are forbidden, as by a mask; -1 is off."""
    allowed: TokenLists | None = field(default=None, metadata={"has_values": False})
    """Allowed tokens of a row; all others are forbidden. Empty: all tokens are allowed."""
    bias: TokenLists | None = field(default=None, metadata={"has_values": True})
    """Numbers added to the logits of these tokens; -inf forbids a token. A token may occur
    twice."""
    seen: TokenLists | None = field(default=None, metadata={"has_values": True})
    """Each token of the row's request, once, with the number of times it was generated; 0: it is
    only in the prompt."""
    reported: TokenLists | None = field(default=None, metadata={"has_values": False})
    """Tokens to report, in this order, instead of the best ones; `num_logprobs` of the row is their
    count."""
    mask: TokenMasks | None = None
    """Tokens forbidden before all other steps, and also in reported raw logits."""

    def given(self, num_rows: int) -> dict[str, NDArray[Any]]:
        """Return the arrays that are present, by name. Raises BackendError unless they have the
        declared types and `num_rows` rows."""
        found: dict[str, NDArray[Any]] = {}
        for name, column in COLUMNS.items():
            array = getattr(self, name)
            if array is not None:
                if len(array) != num_rows or array.dtype.type is not column.dtype:
                    raise misshapen(name, array, column.dtype, num_rows)
                found[name] = array
        return found

    def given_lists(self, num_rows: int) -> dict[str, TokenLists]:
        """Return the lists that are present. Raises BackendError as `given` does."""
        found: dict[str, TokenLists] = {}
        for name, has_values in TOKEN_LISTS.items():
            lists = getattr(self, name)
            if lists is not None:
                lists.check(name, num_rows, has_values=has_values)
                found[name] = lists
        return found

    def take(self, rows: NDArray[np.int32]) -> SamplingColumns:
        """Return the columns of these rows, in the given order."""
        taken: dict[str, Any] = {}
        for one in fields(self):
            part = getattr(self, one.name)
            if part is not None:
                taken[one.name] = part.take(rows)
        return SamplingColumns(**taken)

    def check(self, num_rows: int) -> None:
        """Raises BackendError for what `given` and `given_lists` refuse, and for numbers below the
        lowest."""
        self.given_lists(num_rows)
        for name, array in self.given(num_rows).items():
            lowest = COLUMNS[name].lowest
            if lowest is not None and num_rows and not array.min() >= lowest:
                raise BackendError(
                    f"sampling column {name} has {array.min()}; it must be at least {lowest}"
                )


COLUMNS: dict[str, Column] = {
    one.name: one.metadata["column"] for one in fields(SamplingColumns) if "column" in one.metadata
}
"""Every column with one number per row, by name."""
TOKEN_LISTS: dict[str, bool] = {
    one.name: one.metadata["has_values"]
    for one in fields(SamplingColumns)
    if "has_values" in one.metadata
}
"""Every token list, by name, and whether each of its tokens has a number."""
