"""`FoldedStore`: a checkpoint in which columns are multiplied by factors, and what computes them is
divided by the same (`program.folds`).

The products and quotients are float32. Where factors are powers of two, they are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.program import Param, Tensor
from quire.program.folds import Fold
from quire.weights.store import HostTensor, WeightStore, WrappedStore

Floats = NDArray[np.float32]


@dataclass(slots=True)
class _Changes:
    """The factors of a tensor, by its first and its last axis; of a vector, by its only one."""

    rows: Floats | None = None
    columns: Floats | None = None
    offset: float = 0.0


class FoldedStore(WrappedStore):
    """The tensors of another store with the factors of some folds."""

    def __init__(self, store: WeightStore, factors: Mapping[Fold, Floats]) -> None:
        """`factors`: for each column of the fold's value; heads that share factors have the same
        ones."""
        super().__init__(store)
        self._changes: dict[str, _Changes] = {}
        for fold, own in factors.items():
            for param in fold.matrices:
                for part in param.parts:
                    self._multiply(part, own, of_columns=True)
            for rows in fold.divided:
                self._divide(
                    rows.param, rows.first, np.float32(1) / of_rows(fold, own), rows.offset
                )

    def _divide(self, param: Param, first: int, factors: Floats, offset: float) -> None:
        """Multiplies rows of a weight from `first` on."""
        every = np.ones(param.shape[-2] if len(param.shape) > 1 else param.shape[0], np.float32)
        every[first : first + len(factors)] = factors
        begin = 0
        for part in param.parts:
            count = part.slot_shape[-2] if len(part.shape) > 1 else part.slot_shape[0]
            self._multiply(part, every[begin : begin + count], of_columns=False, offset=offset)
            begin += count

    def _multiply(
        self, part: Tensor, factors: Floats, *, of_columns: bool, offset: float = 0.0
    ) -> None:
        """`factors`: of the rows or the columns that the tensor gives to its weight."""
        changes = self._changes.setdefault(part.name, _Changes())
        changes.offset = offset
        is_last = of_columns != part.transposed and len(part.shape) > 1
        runs = part.columns if is_last else part.rows
        size = part.shape[-1] if is_last else part.shape[max(0, len(part.shape) - 2)]
        old = changes.columns if is_last else changes.rows
        every = np.ones(size, np.float32) if old is None else old
        begin = 0
        for first, count in runs or ((0, size),):
            every[first : first + count] *= factors[begin : begin + count]
            begin += count
        if is_last:
            changes.columns = every
        else:
            changes.rows = every

    def names(self) -> Iterable[str]:
        return self._store.names()

    def get(self, name: str) -> HostTensor:
        found = self._store.get(name)
        return self._changed(name, found) if name in self._changes else found

    def stored(self, name: str) -> HostTensor:
        return self.get(name) if name in self._changes else self._store.stored(name)

    def describe(self, name: str) -> HostTensor:
        return self._store.describe(name)

    def _changed(self, name: str, tensor: HostTensor) -> HostTensor:
        changes = self._changes[name]
        values = tensor.to_float32() + np.float32(changes.offset)
        if changes.rows is not None:
            values *= changes.rows[:, None] if values.ndim > 1 else changes.rows
        if changes.columns is not None:
            values *= changes.columns
        values -= np.float32(changes.offset)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", tensor.shape, data, tensor.file)

    def release(self, name: str) -> None:
        self._store.release(name)


def of_rows(fold: Fold, columns: Floats) -> Floats:
    """Numbers of the rows that give a fold's value, of those of its columns: the first of the heads
    that share them."""
    heads = columns.reshape(-1, fold.sharing, fold.head_dim)
    return np.ascontiguousarray(heads[:, 0]).reshape(-1)
