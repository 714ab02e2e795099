"""`Frame`, the part of a step that an op sees, and the function that computes an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.backends.paged_kv_cache import PagedKVCache
from quire.backends.reference.adapters import StepAdapters, change_product
from quire.backends.reference.linear import RowIndependentMatrix
from quire.errors import BackendError
from quire.program import Op, Param, Split, Value
from quire.ranks import RankGroup

Floats = NDArray[np.float32]
Rows = NDArray[np.intp]


@dataclass(slots=True)
class Weights:
    """The model's numbers by slot name. A matrix that is multiplied is also in `matrices`, those of
    experts in `stacks`."""

    arrays: Mapping[str, Floats]
    matrices: Mapping[str, RowIndependentMatrix]
    stacks: Mapping[str, Sequence[RowIndependentMatrix]]


@dataclass(slots=True)
class Frame:
    """One step in progress: its input, the weights, the cache and the values computed so far."""

    batch: StepBatch
    weights: Weights
    cache: PagedKVCache
    ranks: RankGroup | None = None
    """The other ranks, of a program that was split."""
    adapters: StepAdapters | None = None
    values: dict[Value, Floats] = field(default_factory=dict)
    rows_out: list[Floats] = field(default_factory=list)
    """Rows that `RowsOut` gives, in order."""

    def array(self, param: Param) -> Floats:
        """A slot's numbers."""
        return self.weights.arrays[param.name]

    def multiply(self, x: Value, param: Param) -> Floats:
        """x @ weight.T, rows independent, with the changes of adapters."""
        product = self.weights.matrices[param.name].multiply(self.values[x])
        self._change(param, 0, np.arange(len(product)), self.values[x], product, like=x)
        return product

    def multiply_expert(
        self, x: Floats, param: Param, expert: int, rows: Rows, like: Value
    ) -> Floats:
        """Multiply with the matrix of an expert. x has the `rows` of a value like `like`."""
        product = self.weights.stacks[param.name][expert].multiply(x)
        self._change(param, expert, rows, x, product, like=like)
        return product

    def _change(
        self, param: Param, expert: int, rows: Rows, x: Floats, product: Floats, *, like: Value
    ) -> None:
        if self.adapters is not None:
            taken = len(self.values[like]) != len(self.batch.token_ids)
            own = self.adapters.of_rows(rows, taken=taken)
            change_product(own, param.name, expert, x, product)

    @property
    def group(self) -> RankGroup:
        """The ranks that exchange values. Raises BackendError if there are none."""
        if self.ranks is None:
            raise BackendError("a program that was split among ranks needs the other ranks")
        return self.ranks

    def gathered(self, own: Floats, split: Split) -> Floats:
        """The columns of all ranks, of which `own` are this rank's."""
        first, count = split.own
        whole = np.empty((len(own), split.total), np.float32)
        whole[:, first : first + count] = own
        self.group.columns(whole.view(np.uint8), split.scaled(whole.itemsize).spans)
        return whole


@singledispatch
def run(op: Op, frame: Frame) -> None:  # noqa: ARG001 (what the real ones take)
    """Computes the op's outputs into `frame.values`."""
    raise BackendError(f"the reference backend has no op {type(op).__name__}")


def divide(rows: Floats, outs: Sequence[Value], frame: Frame) -> None:
    """Each value has its part of the columns, in order."""
    begin = 0
    for out in outs:
        frame.values[out] = rows[:, begin : begin + out.dim]
        begin += out.dim
