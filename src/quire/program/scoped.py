"""`ScopedOps`: the ops of a program in the making, and unique names for its values and weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quire.program.values import Param, Tensor, Value

if TYPE_CHECKING:
    from quire.program.ops import Op


class ScopedOps:
    """Base of `Builder`. Invariant: every value's name is new."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ops: list[Op] = []
        self._taken: set[str] = set()
        self._scope = ""
        self._num_memories = 0

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of all values and slots made inside with `name.`."""
        outer, self._scope = self._scope, f"{self._scope}{name}."
        yield
        self._scope = outer

    def _next_memory(self) -> int:
        """The number of the next op that keeps something between steps."""
        number, self._num_memories = self._num_memories, self._num_memories + 1
        return number

    def _emit(self, op: Op) -> Value:
        """Adds an op; returns the one value that it writes."""
        self._ops.append(op)
        [out] = op.outputs()
        return out

    def _value(self, hint: str, dim: int) -> Value:
        return Value(self._unique(f"{self._scope}{hint}"), dim)

    def _param(self, hint: str, parts: tuple[Tensor, ...]) -> Param:
        shapes = [part.slot_shape for part in parts]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return Param(self._unique(f"{self._scope}{hint}"), shape, parts)

    def _optional_param(self, hint: str, parts: tuple[Tensor, ...]) -> Param | None:
        return self._param(hint, parts) if parts else None

    def _unique(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}{number}", number + 1
        self._taken.add(name)
        return name
