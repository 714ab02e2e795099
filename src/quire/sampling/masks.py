"""`TokenMasks`: the tokens that rows may choose, as bit masks. One of the `SamplingColumns`.

Used for rows that allow neither a short list nor all tokens, such as those of a grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError

MASK_BITS = 32
"""Bits per word."""


@dataclass(slots=True)
class TokenMasks:
    """Masks of some rows, each of W = ceil(vocab_size / 32) words: a row may choose token t if bit
    t % 32 of word t // 32 is set."""

    index: NDArray[np.int32]
    """[L]; index of a row's mask in `words`; -1: the row may choose any token."""
    words: NDArray[np.uint32]
    """[M, W]; M masks."""

    @classmethod
    def join(cls, rows: Sequence[NDArray[np.uint32] | None]) -> TokenMasks:
        """Build the masks from the words of each row, at least one of which is not None."""
        index = np.full(len(rows), -1, np.int32)
        lines = [words for words in rows if words is not None]
        has_line = np.array([words is not None for words in rows])
        index[has_line] = np.arange(len(lines), dtype=np.int32)
        return cls(index, np.stack(lines))

    def take(self, rows: NDArray[np.int32]) -> TokenMasks:
        """Return the masks of these rows, in the given order."""
        return TokenMasks(self.index[rows], self.words)

    def allows(self, row: int, vocab_size: int) -> NDArray[np.bool_] | None:
        """Return which tokens the row may choose, [vocab_size]; None: any."""
        line = int(self.index[row])
        if line < 0:
            return None
        bits = np.unpackbits(self.words[line].view(np.uint8), bitorder="little")
        return bits[:vocab_size].astype(np.bool_)

    def check(self, num_rows: int, vocab_size: int) -> None:
        """Raises BackendError unless the arrays have consistent shapes and types."""
        width = -(-vocab_size // MASK_BITS)
        if self.index.shape != (num_rows,) or self.index.dtype != np.int32:
            raise BackendError(
                f"sampling column mask has an index of {self.index.dtype} {list(self.index.shape)} "
                f"for {num_rows} rows"
            )
        if self.words.ndim != 2 or self.words.shape[1] != width or self.words.dtype != np.uint32:
            raise BackendError(
                f"sampling column mask has {self.words.dtype} {list(self.words.shape)}; it must "
                f"be uint32 with {width} words per row"
            )
        if num_rows and not -1 <= self.index.min() <= self.index.max() < len(self.words):
            raise BackendError("sampling column mask has an index without words")
