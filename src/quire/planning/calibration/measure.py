"""Mean squares of a model's values on a text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Backend, Dtype
from quire.backends.records import CompileOptions, KVCacheSpec
from quire.planning.speed.timing import blocks_needed, prompt_step
from quire.program import Op, Program, RowsOut, Value, kv_layout
from quire.tokenizer import Tokenizer
from quire.units import MiB
from quire.weights import WeightStore

Floats = NDArray[np.float32]

MAX_TOKENS = 8192
"""Tokens of a text that are read."""
_MOST_TOKENS = 256
_LEAST_TOKENS = 32
"""Tokens of a step, each of which computes a part of the text by itself."""
_MOST_BYTES = 256 * MiB
"""Maximum size of the values of a step."""
_BLOCK_SIZE = 16


def mean_squares(
    backend: Backend,
    program: Program,
    weights: WeightStore,
    dtype: Dtype,
    values: Sequence[Value],
    tokens: Sequence[int],
    before: Sequence[int],
    max_model_len: int = _MOST_TOKENS,
) -> Mapping[str, Floats]:
    """By the values' names, for each column. `program`: without quantisation; `before`: ids that
    begin a text."""
    giving = _giving(program, {value.name for value in values})
    width = sum(value.dim for value in values)
    most = max(_LEAST_TOKENS, _MOST_BYTES // (4 * width))
    most = min(_MOST_TOKENS, most, max_model_len)
    kv = KVCacheSpec(1, _BLOCK_SIZE, dtype, kv_layout(giving, most))
    kv = backend.sized(giving, kv)
    kv = replace(kv, num_blocks=blocks_needed(kv, 1, most))
    model = backend.compile(giving, weights, kv, CompileOptions(dtype, most, 1, most))
    sums = np.zeros(width)
    num_rows = 0
    try:
        for part in _parts(tokens, before, most):
            step = prompt_step(kv, len(part), giving.vocab_size)
            step = replace(step, token_ids=np.array(part, np.int32), sampling=None)
            rows = model.step(step).rows_out
            if rows is not None:
                sums += np.square(rows, dtype=np.float64).sum(axis=0)
                num_rows += len(rows)
    finally:
        model.close()
    ends = np.cumsum([value.dim for value in values])
    squares = np.split((sums / max(1, num_rows)).astype(np.float32), ends[:-1])
    return dict(zip([value.name for value in values], squares, strict=True))


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """The first ids of a text, without special ones, at most MAX_TOKENS."""
    ids: list[int] = []
    for piece in tokenizer.encode_pieces(text, add_special_tokens=False):
        ids += piece
        if len(ids) >= MAX_TOKENS:
            break
    return ids[:MAX_TOKENS]


def _giving(program: Program, names: Collection[str]) -> Program:
    """The program, which gives these values in its order."""
    ops: list[Op] = []
    for op in program.ops:  # before passes: `take_rows_early` would leave rows out
        ops.append(op)
        ops += [RowsOut(value) for value in op.outputs() if value.name in names]
    given = Program(program.name, tuple(ops))
    given.check()
    return given


def _parts(tokens: Sequence[int], before: Sequence[int], most: int) -> Iterator[list[int]]:
    size = max(1, most - len(before))
    for begin in range(0, len(tokens), size):
        yield [*before, *tokens[begin : begin + size]][:most]
