"""`MadeStore`: what the stores of quantised checkpoints share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from quire.errors import CheckpointError
from quire.weights.store import HostTensor, WeightStore


class MadeStore(WeightStore):
    """A checkpoint in which several tensors stand for a matrix "BASE.weight".

    A matrix is made from its parts when it is asked for, and not kept.
    """

    def __init__(self, store: WeightStore, bases: set[str], parts: tuple[str, ...]) -> None:
        """`parts`: last words of the names of what a base may have."""
        self._store = store
        self._stored = set(store.names())
        self._bases = bases
        self._parts = parts
        made = (f"{base}.weight" for base in bases)
        self._names = list(dict.fromkeys([*filter(self._is_plain, store.names()), *made]))

    @abstractmethod
    def _is_plain(self, name: str) -> bool:
        """Whether this stored tensor is given as it is."""

    @abstractmethod
    def _described(self, name: str, base: str) -> HostTensor:
        """The matrix without its data. May raise ValueError, IndexError or CheckpointError."""

    @abstractmethod
    def _made(self, name: str, base: str) -> HostTensor:
        """The matrix. May raise ValueError, IndexError or CheckpointError."""

    @property
    def source(self) -> str:
        return self._store.source

    def names(self) -> Iterable[str]:
        return self._names

    def describe(self, name: str) -> HostTensor:
        base = self._base(name)
        if base is None:
            return self._store.describe(name)
        try:
            return self._described(name, base)
        except (ValueError, IndexError) as error:
            raise self._misfit(name, error) from error

    def get(self, name: str) -> HostTensor:
        base = self._base(name)
        if base is None:
            return self._store.get(name)
        try:
            return self._made(name, base)
        except (ValueError, IndexError, CheckpointError) as error:
            raise self._misfit(name, error) from error

    def release(self, name: str) -> None:
        base = self._base(name)
        if base is None:
            self._store.release(name)
            return
        for part in self._parts:
            if f"{base}.{part}" in self._stored:
                self._store.release(f"{base}.{part}")

    def prefetch(self) -> None:
        self._store.prefetch()

    def check(self) -> None:
        self._store.check()

    def close(self) -> None:
        self._store.close()

    def _base(self, name: str) -> str | None:
        base = name.removesuffix(".weight")
        return base if base != name and base in self._bases else None

    def _misfit(self, name: str, error: Exception) -> CheckpointError:
        return CheckpointError(f"{self.source}: the parts of {name!r} do not fit together: {error}")
