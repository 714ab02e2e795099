"""`QuantisedStore`: a quantised checkpoint under the names of its matrices.

"...q_proj.weight" stands for all tensors from which the matrix is computed. If the model's format
supports the codes of the file, they are kept; otherwise the matrix is expanded to float32, and a
backend rounds it like any other float32 tensor. `as_shipped` opens each kind of checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quire.errors import CheckpointError
from quire.log import get_logger
from quire.models.quantised import BlockFormats, Expanded, Shipped
from quire.weights.quantised.groups import Groups
from quire.weights.quantised.layouts import LAYOUTS, Layout, Parts
from quire.weights.store import HostTensor, WeightStore, WrappedStore

logger = get_logger(__name__)

_OF_CACHE = tuple(
    f".{part}" for part in ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale")
)
"""Name suffixes of scales for a KV cache of 8-bit floats, which Quire's KV cache does not use."""
_NO_DATA = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A quantised matrix of the checkpoint."""

    parts: Parts
    layout: Layout


class QuantisedStore(WrappedStore):
    """Matrices as codes in groups, or as float32. Each read of a matrix computes it from its parts;
    the result is not cached."""

    def __init__(self, store: WeightStore, how: Expanded, shipped: Shipped | None = None) -> None:
        """`shipped`: the format in which matrices are held; None: all matrices are expanded."""
        super().__init__(store)
        self._shipped = shipped
        names = set(store.names())
        self._matrices = _matrices(store, names, (how, *how.others))
        self._hidden = {
            f"{base}.{part}"
            for base, matrix in self._matrices.items()
            for part in (*matrix.layout.codes, *matrix.layout.others)
        }
        self._stored = names
        self._held: dict[str, bool] = {}
        plain = (name for name in store.names() if not self._is_hidden(name))
        made = (f"{base}.weight" for base in self._matrices)
        self._names = list(dict.fromkeys([*plain, *made]))

    @property
    def source(self) -> str:
        return self._store.source

    @property
    def num_matrices(self) -> int:
        """Number of quantised matrices."""
        return len(self._matrices)

    @property
    def num_expanded(self) -> int:
        """Number of quantised matrices that are expanded to float32."""
        return sum(not self._is_held(f"{base}.weight", m) for base, m in self._matrices.items())

    def names(self) -> Iterable[str]:
        return self._names

    def describe(self, name: str) -> HostTensor:
        matrix = self._matrix(name)
        if matrix is None:
            return self._store.describe(name)
        try:
            shape = matrix.layout.shape(matrix.parts)
        except (ValueError, IndexError) as error:
            raise self._misfit(name, error) from error
        if not self._is_held(name, matrix) or self._shipped is None:
            return HostTensor(name, "F32", shape, _NO_DATA, self.source)
        format = self._shipped.format
        return HostTensor(name, "GROUPED", shape, _NO_DATA, self.source, format=format)

    def get(self, name: str) -> HostTensor:
        matrix = self._matrix(name)
        if matrix is None:
            return self._store.get(name)
        try:
            if self._shipped is not None and self._is_held(name, matrix):
                return self._grouped(name, matrix.layout.groups(matrix.parts, self._shipped))
            values = matrix.layout.numbers(matrix.parts)
        except (ValueError, IndexError, CheckpointError) as error:
            raise self._misfit(name, error) from error
        data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", values.shape, data, self.source)

    def release(self, name: str) -> None:
        matrix, base = self._matrix(name), name.removesuffix(".weight")
        if matrix is None:
            self._store.release(name)
            return
        for part in ("weight", *matrix.layout.codes, *matrix.layout.others):
            if f"{base}.{part}" in self._stored:
                self._store.release(f"{base}.{part}")

    def _matrix(self, name: str) -> _Matrix | None:
        base = name.removesuffix(".weight")
        return None if base == name else self._matrices.get(base)

    def _is_hidden(self, name: str) -> bool:
        return name in self._hidden or name.endswith(_OF_CACHE)

    def _is_held(self, name: str, matrix: _Matrix) -> bool:
        if name not in self._held:
            try:
                self._held[name] = self._fits(name, matrix)
            except (ValueError, IndexError) as error:
                raise self._misfit(name, error) from error
        return self._held[name]

    def _fits(self, name: str, matrix: _Matrix) -> bool:
        """Whether the matrix can be held in the checkpoint's format. May raise ValueError or
        IndexError."""
        shipped = self._shipped
        if shipped is None or matrix.layout is not LAYOUTS[shipped.layout]:
            return False
        return shipped.is_target(name) and matrix.layout.fits(matrix.parts, shipped)

    def _grouped(self, name: str, groups: Groups) -> HostTensor:
        shape, data = groups.codes.shape, groups.to_bytes()
        return HostTensor(name, "GROUPED", shape, data, self.source, format=groups.format)

    def _misfit(self, name: str, error: Exception) -> CheckpointError:
        return CheckpointError(f"{self.source}: the parts of {name!r} do not fit together: {error}")


def _matrices(
    store: WeightStore, names: set[str], ways: tuple[Expanded, ...]
) -> dict[str, _Matrix]:
    """Return the quantised matrices by module name. Each has the first layout that its tensors
    match."""
    found: dict[str, _Matrix] = {}
    for how in ways:
        layout = LAYOUTS[how.layout]
        ends = tuple(f".{code}" for code in layout.codes)
        for name in sorted(filter(lambda name: name.endswith(ends), names)):
            base = next(name.removesuffix(end) for end in ends if name.endswith(end))
            parts = Parts(store, names, base, how)
            if base not in found and (len(ways) == 1 or layout.is_here(parts)):
                found[base] = _Matrix(parts, layout)
    return found


def as_shipped(
    store: WeightStore, shipped: Shipped | BlockFormats | Expanded | None
) -> WeightStore:
    """`quantised_store`; the log says how many matrices are expanded."""
    found = quantised_store(store, shipped)
    if not isinstance(found, QuantisedStore) or not isinstance(shipped, Shipped | Expanded):
        return found
    if count := found.num_expanded:
        logger.info(
            "%s: %d of %d matrices are expanded when they are read, and held as plain numbers",
            shipped.what,
            count,
            found.num_matrices,
        )
    return found


def quantised_store(
    store: WeightStore, shipped: Shipped | BlockFormats | Expanded | None
) -> WeightStore:
    """Return a store that supports the checkpoint's quantised matrices. The store of a GGUF file
    does so itself and is returned unchanged."""
    if isinstance(shipped, Expanded):
        return QuantisedStore(store, shipped)
    if isinstance(shipped, Shipped) and shipped.expanded is not None:
        return QuantisedStore(store, shipped.expanded, shipped)
    return store  # `experts` reads experts in MXFP4
