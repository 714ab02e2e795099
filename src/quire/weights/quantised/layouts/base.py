"""`Layout`: in which tensors a kind of checkpoint stores a matrix. `Parts`: those of a module."""

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
    """The tensors of one module: "qweight" is that of the name BASE.qweight."""

    def __init__(self, store: WeightStore, names: set[str], base: str, how: Expanded) -> None:
        """`names`: those of the store. `how`: what the checkpoint says of the layout."""
        self.how = how
        self._store = store
        self._names = names
        self._base = base

    def has(self, part: str) -> bool:
        """Whether the module has this tensor."""
        return f"{self._base}.{part}" in self._names

    def first(self, *parts: str) -> str | None:
        """The first of these that the module has."""
        return next((part for part in parts if self.has(part)), None)

    def shape(self, part: str) -> Shape:
        """Raises CheckpointError if the tensor is missing, as all methods below do."""
        return self._store.shape(f"{self._base}.{part}")

    def matrix(self, part: str) -> tuple[int, int]:
        """The shape of a tensor, which must have two dimensions. Raises ValueError."""
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
            raise ValueError(f"{part} has numbers of type {found.dtype}, not {dtype.__name__}")
        return found

    def holds(self, part: str, dtype: type[np.generic]) -> bool:
        """Whether the module has this tensor and its numbers are whole and of this dtype."""
        try:
            return self.has(part) and self.integers(part, dtype) is not None
        except (ValueError, CheckpointError):
            return False


class Layout(ABC):
    """How a matrix is made of its parts. Has no state."""

    codes: ClassVar[tuple[str, ...]]
    """A module that has one of these tensors is quantised."""
    others: ClassVar[tuple[str, ...]] = ()
    """Further tensors of such a module, which are not given as they are."""

    def is_here(self, parts: Parts) -> bool:
        """Whether a module's tensors are of this layout, where a checkpoint has several."""
        del parts
        return True

    @abstractmethod
    def shape(self, parts: Parts) -> Shape:
        """Of the matrix, [N, K]. May raise ValueError or CheckpointError, as all methods below."""

    @abstractmethod
    def numbers(self, parts: Parts) -> Floats:
        """The matrix as float32."""

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        """Whether the matrix can be held in the format of the checkpoint. Reads no codes."""
        del parts, shipped
        return False

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        """A matrix that fits, exactly."""
        del parts
        raise ValueError(f"{shipped.layout} is not held as it is")
