"""`Layout`: how a kind of checkpoint stores a matrix. `Parts`: the tensors of a module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.weights.quantised.groups import Floats, Groups
from quire.weights.store import WeightStore

if TYPE_CHECKING:
    from quire.models.quantised import Expanded, Shipped

Shape = tuple[int, ...]


class Parts:
    """The tensors of one module: part "qweight" is the tensor BASE.qweight."""

    def __init__(self, store: WeightStore, names: set[str], base: str, how: Expanded) -> None:
        """`names`: all tensor names of the store. `how`: the layout that the checkpoint's
        configuration describes."""
        self.how = how
        self._store = store
        self._names = names
        self._base = base

    def has(self, part: str) -> bool:
        """Whether the module has this tensor."""
        return f"{self._base}.{part}" in self._names

    def first(self, *parts: str) -> str | None:
        """The first of `parts` that the module has."""
        return next((part for part in parts if self.has(part)), None)

    def shape(self, part: str) -> Shape:
        """The shape of a tensor. Like all methods below, raises CheckpointError if the tensor is
        missing."""
        return self._store.shape(f"{self._base}.{part}")

    def matrix(self, part: str) -> tuple[int, int]:
        """The shape of a tensor. Raises ValueError unless it has two dimensions."""
        shape = self.shape(part)
        if len(shape) != 2:
            raise ValueError(f"{part} has shape {list(shape)}; it must have two dimensions")
        return shape[0], shape[1]

    def floats(self, part: str) -> Floats:
        """A tensor of floating-point numbers as float32."""
        return self._store.get(f"{self._base}.{part}").to_float32()

    def integers(self, part: str, dtype: type[np.generic]) -> NDArray[Any]:
        """A tensor of whole numbers or of codes of 8-bit floats. Raises ValueError for another
        dtype."""
        found = self._store.integers(f"{self._base}.{part}")
        if found.dtype != np.dtype(dtype):
            raise ValueError(f"{part} must have dtype {dtype.__name__}, not {found.dtype}")
        return found

    def holds(self, part: str, dtype: type[np.generic]) -> bool:
        """Whether the module has this tensor with whole numbers of this dtype."""
        try:
            return self.has(part) and self.integers(part, dtype) is not None
        except (ValueError, CheckpointError):
            return False


class Layout(ABC):
    """Computes a matrix from its parts. Stateless."""

    codes: ClassVar[tuple[str, ...]]
    """A module that has one of these tensors is quantised."""
    others: ClassVar[tuple[str, ...]] = ()
    """Further tensors of such a module; a store does not list them by their own names."""

    def is_here(self, parts: Parts) -> bool:
        """Whether a module has this layout. Called only if a checkpoint mixes several layouts."""
        del parts
        return True

    @abstractmethod
    def shape(self, parts: Parts) -> Shape:
        """Shape of the matrix, [N, K]. Like all methods below, may raise ValueError or
        CheckpointError."""

    @abstractmethod
    def numbers(self, parts: Parts) -> Floats:
        """The matrix as float32."""

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        """Whether the matrix can be held in the checkpoint's format. Does not read codes."""
        del parts, shipped
        return False

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        """Return a matrix that `fits`, without rounding."""
        del parts
        raise ValueError(f"matrices in the layout {shipped.layout} must be expanded")
