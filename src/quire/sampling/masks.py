"""`TokenMasks`: which tokens a row may choose, as bits. One of the `SamplingColumns`.

For rows where that is neither a short list nor all tokens: what a grammar allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.units import ceil_div

MASK_BITS = 32
"""Of a word."""


@dataclass(slots=True)
class TokenMasks:
    """Some rows have a line of W = ceil(vocab_size / 32) words: the row may choose token t if bit
    t % 32 of word t // 32 is set."""

    index: NDArray[np.int32]
    """[L]; a row's line; -1: the row may choose any token."""
    words: NDArray[np.uint32]
    """[M, W]"""

    @classmethod
    def join(cls, rows: Sequence[NDArray[np.uint32] | None]) -> TokenMasks:
        """From the words of each row, at least one of which has any."""
        index = np.full(len(rows), -1, np.int32)
        lines = [words for words in rows if words is not None]
        has_line = np.array([words is not None for words in rows])
        index[has_line] = np.arange(len(lines), dtype=np.int32)
        return cls(index, np.stack(lines))

    def take(self, rows: NDArray[np.int32]) -> TokenMasks:
        """The masks of these rows, in their order."""
        return TokenMasks(self.index[rows], self.words)

    def allows(self, row: int, vocab_size: int) -> NDArray[np.bool_] | None:
        """[vocab_size]; which tokens the row may choose; None: any."""
        line = int(self.index[row])
        if line < 0:
            return None
        bits = np.unpackbits(self.words[line].view(np.uint8), bitorder="little")
        return bits[:vocab_size].astype(np.bool_)

    def check(self, num_rows: int, vocab_size: int) -> None:
        """Raises BackendError unless the arrays have this shape and fit together."""
        width = ceil_div(vocab_size, MASK_BITS)
        if self.index.shape != (num_rows,) or self.index.dtype != np.int32:
            raise BackendError(
                f"sampling column mask has {self.index.dtype} {list(self.index.shape)} for "
                f"{num_rows} rows"
            )
        if self.words.ndim != 2 or self.words.shape[1] != width or self.words.dtype != np.uint32:
            raise BackendError(
                f"sampling column mask has {self.words.dtype} {list(self.words.shape)}, not uint32 "
                f"with {width} words a line"
            )
        if num_rows and not -1 <= self.index.min() <= self.index.max() < len(self.words):
            raise BackendError("sampling column mask has a row without words")
