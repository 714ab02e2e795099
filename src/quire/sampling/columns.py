"""`SamplingColumns`: what a backend is told of sampling, an array for each parameter.

A column is declared here and nowhere else: its type, its neutral value, what it may hold, and how
it follows from a request's parameters. The worker keeps and gathers columns, and the backends take
and check them, by this declaration. Legend: L rows of logits of which a token is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.params import GREEDY_BELOW, SamplingParams


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
    bias_starts: NDArray[np.int32] | None = None
    """[L + 1]; with s, e = bias_starts[l:l+2], row l adds bias_values[s:e] to its logits at
    bias_ids[s:e] before anything else but the raw logprobs; -inf forbids a token, inf all
    others."""
    bias_ids: NDArray[np.int32] | None = None
    bias_values: NDArray[np.float32] | None = None

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
        if self.bias_starts is not None:
            found |= _whole_bias(self.bias_starts, self.bias_ids, self.bias_values, num_rows)
        return found

    def check(self, num_rows: int) -> None:
        """Raises BackendError for what `given` refuses, and for numbers that mean nothing."""
        for name, array in self.given(num_rows).items():
            lowest = COLUMNS[name].lowest if name in COLUMNS else None
            if lowest is not None and num_rows and not array.min() >= lowest:
                raise BackendError(f"sampling column {name} holds {array.min()}, below {lowest}")


COLUMNS: dict[str, Column] = {
    one.name: one.metadata["column"] for one in fields(SamplingColumns) if one.metadata
}
"""Every column with one number for each row, by name."""


def _misshapen(
    name: str, array: NDArray[Any], dtype: type[np.generic], num_rows: int
) -> BackendError:
    if len(array) != num_rows:
        return BackendError(f"sampling column {name} has {len(array)} rows, not {num_rows}")
    return BackendError(f"sampling column {name} is {array.dtype}, not {dtype.__name__}")


def _whole_bias(
    starts: NDArray[np.int32],
    ids: NDArray[np.int32] | None,
    values: NDArray[np.float32] | None,
    num_rows: int,
) -> dict[str, NDArray[Any]]:
    if len(starts) != num_rows + 1 or starts.dtype != np.int32:
        raise _misshapen("bias_starts", starts, np.int32, num_rows + 1)
    if ids is None or values is None or not len(ids) == len(values) == starts[-1]:
        raise BackendError("bias_ids and bias_values do not have the length of bias_starts")
    if ids.dtype != np.int32 or values.dtype != np.float32:
        raise BackendError(f"bias_ids are {ids.dtype}, bias_values {values.dtype}")
    return {"bias_starts": starts, "bias_ids": ids, "bias_values": values}
