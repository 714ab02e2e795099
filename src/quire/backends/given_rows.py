"""`RowWidths`: how wide the rows must be that are given with a step (`StepBatch.input_rows` and
`given_kv`). Used by all backends that compile programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.backends.base import StepBatch, TokenRows
from quire.errors import BackendError
from quire.program import Program


@dataclass(frozen=True, slots=True)
class RowWidths:
    """Numbers of a row."""

    embedding: int
    """0: the program looks up no tokens."""
    full: int
    """With the numbers that `GivenColumns` reads. These may be missing, and are 0 then."""
    kv: int
    """0: the layers do not all store K and V of the same size for each token."""

    @classmethod
    def of(cls, program: Program) -> RowWidths:
        """The widths for a program."""
        memories = program.memories()
        layers = {
            op.layer: op.k.dim + op.v.dim
            for op in program.attention_ops()
            if op.k is not None and op.v is not None and op.layer is not None
        }
        is_plain = len(layers) == len(memories) and len(set(layers.values())) == 1
        return cls(*program.row_widths, sum(layers.values()) if is_plain else 0)

    def check(self, batch: StepBatch) -> None:
        """Raises BackendError for rows of another width, or of tokens that the step has not."""
        num_tokens = len(batch.token_ids)
        if self.embedding:
            given = [self.widened(one) for one in batch.input_rows]
            _check("input_rows", given, num_tokens, self.full)
        if batch.given_kv and not self.kv:
            raise BackendError("given_kv must be empty: the layers keep different things")
        _check("given_kv", batch.given_kv, num_tokens, self.kv)

    def widened(self, given: TokenRows) -> TokenRows:
        """The rows in their full width."""
        rows = given.rows
        if self.embedding == self.full or rows.ndim != 2 or rows.shape[1] != self.embedding:
            return given
        more = ((0, 0), (0, self.full - self.embedding))
        return TokenRows(given.first, np.pad(rows, more))


def _check(name: str, given: Sequence[TokenRows], num_tokens: int, width: int) -> None:
    for one in given:
        shape = one.rows.shape
        if len(shape) != 2 or shape[1] != width or not 0 <= one.first <= num_tokens - shape[0]:
            raise BackendError(
                f"{name} {list(shape)} from token {one.first} on must have {width} numbers in a "
                f"row, and be for the {num_tokens} tokens of the step"
            )
