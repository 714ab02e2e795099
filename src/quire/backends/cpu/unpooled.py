"""`UnpooledOps`: how a model that ends in a mean computes rows without it, for requests that want a
vector for each token.

Such a step has three parts. The first computes the hidden states of all tokens and copies the rows
of the results; the second writes means over the copies of pooled requests, which stand first; the
third has the ops after the mean. Steps with pooled requests alone run the model's own ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch

if TYPE_CHECKING:
    from quire.backends.cpu.encode import Encoded
    from quire.backends.cpu.library import Library
    from quire.backends.cpu.lowering import NativeOp
    from quire.backends.cpu.step_in_pieces import Prepare, RunOps

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class UnpooledOps:
    """The ops of a model with a mean."""

    records: Any
    """All ops of the model."""
    count: int
    mean: int
    """The index of the op that computes the mean."""
    first: Any
    """The ops before it, and one that copies rows to its place."""
    width: int

    @classmethod
    def of(
        cls, library: Library, ops: Sequence[NativeOp], encoded: Encoded, width: int
    ) -> UnpooledOps | None:
        """None: the model has no mean."""
        mean = next((at for at, op in enumerate(ops) if op.struct == "mean_rows"), None)
        if mean is None:
            return None
        records = encoded.records
        first = library.ffi.new("quire_op[]", mean + 1)
        for at in range(mean + 1):
            first[at] = records[at]
        place = records[mean].u.mean_rows
        first[mean].kind = library.code("QUIRE_OP_TAKE_ROWS")
        first[mean].u.take_rows.x, first[mean].u.take_rows.out = place.x, place.out
        return cls(records, len(ops), mean, first, width)

    def step(
        self, batch: StepBatch, unpooled: NDArray[np.bool_], prepare: Prepare, run: RunOps
    ) -> Floats:
        """The results of a step whose batch has its own block tables. Raises what `run` raises."""
        order = np.argsort(unpooled, kind="stable")
        batch = replace(batch, logits_rows=batch.logits_rows[order])
        found = np.empty((len(order), self.width), np.float32)
        all_rows = prepare(batch)
        run(self.first, self.mean + 1, all_rows, None)
        num_pooled = len(unpooled) - int(np.count_nonzero(unpooled))
        if num_pooled:
            pooled = replace(batch, logits_rows=batch.logits_rows[:num_pooled])
            run(self.records + self.mean, 1, prepare(pooled), None)
        after = self.mean + 1
        run(self.records + after, self.count - after, all_rows, found)
        vectors = np.empty_like(found)
        vectors[order] = found
        return vectors
